"""How a running engine reaches its ranks about adapters: one short call between two steps at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from loadmaster.serving.loop import StepLoop
from loadmaster_hookspecs.errors import LoadmasterError

BUSY_SHARE: Final = 0.2
BUSY_SECONDS: Final = 0.002
"""Slice of a load while requests run: a share of a step, but not so little that calls cost more than they do."""

IDLE_SECONDS: Final = 0.01
"""Slice of a load while none does: the next request waits for the rest of it at most."""

T = TypeVar("T")


class BetweenSteps:
    """Has calls made by the thread that steps."""

    def __init__(self, loop: StepLoop) -> None:
        self._loop = loop

    def slice_seconds(self) -> float:
        """Return how long a call may take: little while requests run."""
        return IDLE_SECONDS if self._loop.idle else max(BUSY_SECONDS, BUSY_SHARE * self._loop.step_seconds)

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Have a call made after the step that runs."""
        try:
            return self._loop.between_steps(work)
        except LoadmasterError as error:
            failed: Future[T] = Future()
            failed.set_exception(error)
            return failed
