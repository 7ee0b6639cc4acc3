"""What happens during a load, as data for observers: progress displays, metrics, traces."""

from __future__ import annotations

from typing import Literal

import msgspec

Stage = Literal[
    "discover", "index", "plan", "spawn", "manifest", "rendezvous", "reserve", "load", "bind", "verify", "serve", "stop"
]

HOST_RANK = -1
"""The rank of events that the host itself emits."""


class StageStarted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A process entered a stage."""

    rank: int
    stage: Stage


class StageFinished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A process completed a stage after `seconds` of wall time, having moved `nbytes`."""

    rank: int
    stage: Stage
    seconds: float
    nbytes: int = 0


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A rank has moved `done` of `total` bytes in a stage. Sent a few times a second at most."""

    rank: int
    stage: Stage
    done: int
    total: int


class Notice(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A line worth telling the user once, for example which sampling defaults apply and from which file."""

    rank: int
    text: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A process failed; `code` is the error's stable code."""

    rank: int
    stage: Stage
    code: str
    summary: str


Event = StageStarted | StageFinished | Progress | Notice | Failed
