"""How the ranks are reached about adapters: by the calling thread in its turn, or between two steps of a running loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from loadmaster.adapters.moving import Answer, Ask
from loadmaster_hookspecs.errors import LoadmasterError

TURN_SECONDS: Final = 0.25
"""Slice of a load beside whole batches, which wait for each other anyway."""


class Reach(Protocol):
    """Carries calls about adapters to the ranks."""

    def slice_seconds(self) -> float:
        """Return how long a call may take at present."""
        ...

    def begin(self, op: str, bodies: bytes | Sequence[bytes]) -> Future[Answer]:
        """Have a call made. What goes wrong is in the future."""
        ...


class InTurns:
    """Makes every call at once, on the thread that asks for it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def slice_seconds(self) -> float:
        """Return a constant: nothing runs between the calls of a batch."""
        return TURN_SECONDS

    def begin(self, op: str, bodies: bytes | Sequence[bytes]) -> Future[Answer]:
        """Make the call and return what came of it."""
        return settled(lambda: self._ask(op, bodies))


def settled(work: Callable[[], Answer]) -> Future[Answer]:
    """Return a future with the outcome of `work`, which is done before this returns."""
    future: Future[Answer] = Future()
    try:
        future.set_result(work())
    except LoadmasterError as error:
        future.set_exception(error)
    return future
