"""Bringing a planned adapter to all ranks in bounded slices, so that steps of requests run in between."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from loadmaster.bringup import SLOWEST_STORAGE
from loadmaster_engine.run.agreement import telling
from loadmaster_engine.run.messages import encode
from loadmaster_engine.serve.adapter_messages import AdapterBuild, AdapterClose, AdapterMove, AdapterOpen, AdapterState
from loadmaster_hookspecs.errors import LoadmasterError, WorkerError, from_report
from loadmaster_hookspecs.plan import AdapterPlan

ARRIVAL_SECONDS: Final = 1800.0
"""Seconds that an adapter may take to arrive, for every slice waits for a step, besides what slow storage takes."""

PART_SECONDS: Final = 0.002
"""What building a part is taken to last until one was built."""

GROWTH: Final = 2.0
"""A slice builds at most this many times as many parts as the one before it."""


class Answer(NamedTuple):
    """What all ranks said, in rank order, and the seconds that the call took them."""

    states: Sequence[AdapterState]
    seconds: float


Ask = Callable[[str, bytes | Sequence[bytes]], Answer]
"""Sends a call about an adapter to all ranks, one body for all or one each, and returns their answers."""


def bring_in(ask: Ask, plan: AdapterPlan, number: int, slice_seconds: Callable[[], float]) -> None:
    """Open, move and build an adapter until every rank is ready. `slice_seconds` says how long a call may take at present.

    Raises the first rank's error, with the adapter's name; then no rank holds anything of it.
    """
    deadline = time.monotonic() + ARRIVAL_SECONDS + sum(rank.bytes for rank in plan.ranks) / SLOWEST_STORAGE

    def step(op: str, body: bytes) -> Answer:
        if time.monotonic() > deadline:
            raise WorkerError("LM-ADAPTER-SLOW", "an adapter did not arrive in time", where={"stage": op})
        answer = ask(op, body)
        _check(answer.states)
        return answer

    try:
        states = ask("adapter_open", [encode(each) for each in _openings(plan, number)]).states
        _check(states)
        while any(state.moved < state.total for state in states):
            states = step("adapter_move", encode(AdapterMove(number=number, seconds=slice_seconds()))).states
        parts = max(1, int(slice_seconds() / PART_SECONDS))
        while not all(state.ready for state in states):
            states, seconds = step("adapter_build", encode(AdapterBuild(number=number, parts=parts)))
            parts = _next_parts(parts, slice_seconds() / max(seconds, 1e-6))
    except BaseException as error:  # boundary: whatever stopped it, no rank may keep a part of it
        with contextlib.suppress(LoadmasterError):  # ranks that have ended hold nothing
            take_away(ask, number)
        if isinstance(error, LoadmasterError):
            raise error.located(adapter=plan.name) from error.__cause__
        raise


def take_away(ask: Ask, number: int) -> int:
    """Give everything of an adapter back and return the bytes that it held over all ranks."""
    return sum(state.nbytes for state in ask("adapter_close", encode(AdapterClose(number=number))).states)


def _openings(plan: AdapterPlan, number: int) -> list[AdapterOpen]:
    return [AdapterOpen(number=number, plan=msgspec.structs.replace(plan, ranks=(part,))) for part in plan.ranks]


def _check(states: Sequence[AdapterState]) -> None:
    """Raise a rank's error, if there is one: not that of a rank which stopped because another one failed."""
    if found := telling(state.error for state in states):
        error, rank = found
        raise from_report(error).located(rank=rank)


def _next_parts(parts: int, room: float) -> int:
    """Return how many parts fit into a slice when `parts` fitted `room` times."""
    return max(1, int(parts * min(room, GROWTH)))
