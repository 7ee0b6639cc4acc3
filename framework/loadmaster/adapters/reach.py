"""When the ranks are reached about adapters: at once, in a turn, or between two steps of a running loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

from loadmaster_hookspecs.errors import LoadmasterError

TURN_SECONDS: Final = 0.25
"""Slice of a load beside whole batches, which wait for each other anyway."""


T = TypeVar("T")


class Reach(Protocol):
    """Finds the moment for calls to the ranks."""

    def slice_seconds(self) -> float:
        """Return how long a call may take at present."""
        ...

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Have a call made. What goes wrong is in the future."""
        ...


class AtOnce:
    """Makes every call at once, on the thread that asks for it. The call itself waits for its turn."""

    def slice_seconds(self) -> float:
        """Return a constant: nothing runs between the calls of a batch."""
        return TURN_SECONDS

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Make the call and return what came of it."""
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except LoadmasterError as error:
            future.set_exception(error)
        return future
