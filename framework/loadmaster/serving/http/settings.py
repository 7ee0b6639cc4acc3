"""What the server is told when it starts."""

from __future__ import annotations

import msgspec

from loadmaster.serving.types import SamplingParams
from loadmaster_engine.report import LoadReport


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server's settings; times are seconds of wall time, sizes bytes.

    `models` are the names that requests may use. `defaults` fills in what a request leaves out, except `max_tokens`. An empty
    `key` lets everyone in. `hosts` are the names under which the server may be addressed, empty for all names.
    `drain_seconds` is what running requests get when the server is asked to stop. `body_seconds` is what a client may take
    to send a request, `send_seconds` how long it may leave a piece of an answer unread. `report` is shown in `/metrics`.
    Clients may load adapters from inside `adapter_folder`, and unload any; empty: they may do neither.
    """

    models: tuple[str, ...]
    defaults: SamplingParams = SamplingParams(temperature=1.0)
    key: str = ""
    hosts: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    max_choices: int = 128
    drain_seconds: float = 30.0
    body_seconds: float = 30.0
    send_seconds: float = 60.0
    report: LoadReport | None = None
    adapter_folder: str = ""
