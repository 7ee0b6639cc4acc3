"""The calls that bring adapters to running workers and take them away again, as data.

An adapter has a number, which never stands for another content. It is opened, moved and built in bounded slices, each a call
between two steps, and may be named by rows once every rank says that it is ready. Whatever goes wrong with it is told in the
answer, and never raised: a bad adapter ends no worker.
"""

from __future__ import annotations

import msgspec

from loadmaster_hookspecs.errors import ErrorReport
from loadmaster_hookspecs.plan import AdapterPlan


class AdapterOpen(msgspec.Struct, frozen=True, kw_only=True):
    """Op `adapter_open`: reserve the arena of an adapter and open its files. The plan has this rank's part only."""

    number: int
    plan: AdapterPlan


class AdapterMove(msgspec.Struct, frozen=True, kw_only=True):
    """Op `adapter_move`: move bytes into the arena for about `seconds`, or until all are there."""

    number: int
    seconds: float


class AdapterBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Op `adapter_build`: prepare the next `parts` parts. All ranks do the same ones at once: kinds may add up over ranks."""

    number: int
    parts: int


class AdapterClose(msgspec.Struct, frozen=True, kw_only=True):
    """Op `adapter_close`: give everything of an adapter back, in whatever state it is. Answered with its last state.

    Where it was never opened nothing happens.
    """

    number: int


class AdapterState(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of every rank: how far an adapter is. `nbytes` is what it holds, `error` what stopped it."""

    number: int
    nbytes: int = 0
    moved: int = 0
    total: int = 0
    built: int = 0
    parts: int = 0
    error: ErrorReport | None = None

    @property
    def ready(self) -> bool:
        """Whether rows may name the adapter."""
        return self.error is None and self.moved == self.total and self.built == self.parts
