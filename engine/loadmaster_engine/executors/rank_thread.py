"""One rank as a thread of the caller's process."""

from __future__ import annotations

import functools
import logging
import pkgutil
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

from loadmaster_engine.executors.deadline import Deadline
from loadmaster_hookspecs.events import Event
from loadmaster_hookspecs.executors import Result, Service, ServiceFactory, WorkerSpec

_log = logging.getLogger(__name__)


class Outcome(msgspec.Struct, frozen=True):
    """What a rank's thread has to tell: an event on the way, the result of what it was asked, or the error it failed with."""

    rank: int
    event: Event | None = None
    result: Result | None = None
    error: BaseException | None = None


class Inbox(Protocol):
    """Where threads put their outcomes."""

    def put(self, item: Outcome) -> None:
        """Add an outcome; never waits."""
        ...


def make_service(spec: WorkerSpec) -> Service:
    """Make the service that `spec.service` (`module:function`) names. Raises whatever its import or its making raises."""
    factory = cast(ServiceFactory, pkgutil.resolve_name(spec.service))
    return factory(spec)


def close_service(service: Service, rank: int) -> None:
    """Close a service whose caller no longer waits for it; an exception is logged."""
    try:
        service.close()
    except Exception:  # boundary: nobody is left to catch it # noqa: BLE001
        _log.exception("rank %d failed to close its service", rank)


class RankThread:
    """A daemon thread that makes a rank's service, answers its calls one at a time, and closes it.

    Everything the service does happens on this one thread, except `abort`.
    """

    def __init__(self, spec: WorkerSpec, outcomes: Inbox) -> None:
        self.rank = spec.rank
        self._spec = spec
        self._outcomes = outcomes
        self._jobs: queue.SimpleQueue[tuple[str, bytes] | None] = queue.SimpleQueue()
        self._service: Service | None = None
        self._thread = threading.Thread(target=self._run, name=f"loadmaster-r{spec.rank}", daemon=True)

    def start(self) -> None:
        """Start the thread; it makes the service and reports that as its first outcome."""
        self._thread.start()

    def ask(self, op: str, body: bytes) -> None:
        """Hand over a call. Its outcome arrives in the inbox."""
        self._jobs.put((op, body))

    def abort(self) -> None:
        """Break any wait of this rank on other ranks."""
        if self._service is not None:
            self._service.abort()

    def finish(self) -> None:
        """Have the thread close the service and end once it has answered what it was asked."""
        self._jobs.put(None)

    def ended(self, deadline: Deadline) -> bool:
        """Wait until the thread has ended, at most until the deadline, and say whether it has."""
        if self._thread.ident is not None:
            self._thread.join(deadline.remaining)
        return not self._thread.is_alive()

    def stack(self) -> str:
        """Return the thread's Python stack as text, empty when it has ended."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def _run(self) -> None:
        self._attempt(self._make)
        try:
            while (job := self._jobs.get()) is not None:
                self._attempt(functools.partial(self._handle, *job))
        finally:
            if self._service is not None:
                close_service(self._service, self.rank)

    def _attempt(self, work: Callable[[], Result]) -> None:
        try:
            outcome = Outcome(self.rank, result=work())
        except BaseException as error:  # boundary: the error belongs to the thread that called the executor # noqa: BLE001
            outcome = Outcome(self.rank, error=error)
        self._outcomes.put(outcome)

    def _make(self) -> Result:
        self._service = make_service(self._spec)
        return Result()

    def _handle(self, op: str, body: bytes) -> Result:
        if self._service is None:
            raise RuntimeError("the rank has no service")
        return self._service.handle(op, body, lambda event: self._outcomes.put(Outcome(self.rank, event=event)))
