"""The executor that runs all ranks in the caller's process: no child process, no global patch.

A single rank runs on the caller's own thread, so nothing but the work itself can end a call: `timeout` is not enforced there.
Several ranks have a daemon thread each, because a step needs all of them at once; `timeout` holds.
"""

from __future__ import annotations

import queue
import weakref
from collections.abc import Sequence

from loadmaster_engine.executors.deadline import Deadline
from loadmaster_engine.executors.failure import Silent, error_of, report_of, silence
from loadmaster_engine.executors.group import GroupExecutor, RankGroup, Workplace
from loadmaster_engine.executors.last_seen import LastSeen
from loadmaster_engine.executors.rank_thread import Outcome, RankThread, close_service, make_service
from loadmaster_hookspecs.errors import LoadmasterError
from loadmaster_hookspecs.events import Event
from loadmaster_hookspecs.executors import EventSink, Executor, Result, Service, WorkerSpec

SEQUENTIAL = frozenset({"reserve", "load", "bind", "verify"})
"""Calls named after these stages go to one rank after another, so that ranks in one process do not compete for memory and
disk. Ranks cannot wait for each other in them; in all other calls they can."""

ABORT_SECONDS = 5.0
"""How long ranks may take to come back after `abort`, and to close when stopped. A thread cannot be killed: one that stays
longer is left behind as a daemon."""


class InlineFactory:
    """Makes inline executors."""

    name = "inline"
    separate_processes = False

    def create(self, *, preload: Sequence[str], on_event: EventSink) -> Executor:
        """Make an executor. `preload` is not used: the caller's process imports what the services import."""
        return GroupExecutor(self.name, InlineWorkplace(on_event), on_event)


class InlineWorkplace:
    """Runs groups in the caller's process; groups share nothing."""

    def __init__(self, on_event: EventSink) -> None:
        self._on_event = on_event

    def prepare(self) -> None:
        """Do nothing: imports on another thread would only take turns with the caller's."""

    def group(self, specs: Sequence[WorkerSpec]) -> RankGroup:
        """Return a single rank on the caller's thread, or a thread for each of several."""
        return OneRank(specs[0], self._on_event) if len(specs) == 1 else RankThreads(specs, self._on_event)

    def beside(self, on_event: EventSink) -> Workplace:
        """Return another workplace: nothing is shared."""
        return InlineWorkplace(on_event)

    def close(self) -> None:
        """Do nothing: nothing is shared."""


class OneRank:
    """A single rank on the caller's thread. Deadlines are not enforced."""

    def __init__(self, spec: WorkerSpec, on_event: EventSink) -> None:
        self._spec = spec
        self._on_event = on_event
        self._seen = LastSeen()
        self._service: Service | None = None
        self._sink_error: BaseException | None = None

    def start(self, deadline: Deadline) -> None:
        """Make the service."""
        try:
            self._service = make_service(self._spec)
        except Exception as error:  # boundary: a rank may raise anything
            raise self._failed(error) from error

    def call(self, op: str, bodies: Sequence[bytes], deadline: Deadline) -> list[Result]:
        """Answer the call on this thread."""
        assert self._service is not None, "call before start"
        try:
            return [self._service.handle(op, bodies[0], self._emit)]
        except Exception as error:  # boundary: a rank may raise anything
            if error is self._sink_error:
                raise  # the caller's own, not the rank's
            raise self._failed(error) from error

    def stop(self) -> None:
        """Close the service."""
        self.end()

    def end(self) -> None:
        """Close the service, once."""
        service, self._service = self._service, None
        if service is not None:
            close_service(service, self._spec.rank)

    def _emit(self, event: Event) -> None:
        self._seen = self._seen.after(event)
        try:
            self._on_event(event)
        except BaseException as error:  # boundary: only marks whose error it is, and passes it on
            self._sink_error = error
            raise

    def _failed(self, error: Exception) -> LoadmasterError:
        return error_of(report_of(error), self._spec.rank, self._seen)


class RankThreads:
    """Several ranks, each on a thread of its own. Events reach `on_event` on the thread that calls."""

    def __init__(self, specs: Sequence[WorkerSpec], on_event: EventSink) -> None:
        self._on_event = on_event
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._threads = {spec.rank: RankThread(spec, self._outcomes) for spec in specs}
        self._seen = {spec.rank: LastSeen() for spec in specs}
        self._dismiss = weakref.finalize(self, _dismiss, list(self._threads.values()))

    def start(self, deadline: Deadline) -> None:
        """Start the threads, one after another: services are made in rank order."""
        for rank, thread in self._threads.items():
            thread.start()
            self._gather("start", {rank}, deadline)

    def call(self, op: str, bodies: Sequence[bytes], deadline: Deadline) -> list[Result]:
        """Answer the call on all threads at once, or on one after another for the `SEQUENTIAL` calls."""
        jobs = dict(zip(self._threads, bodies, strict=True))
        rounds = [{rank} for rank in jobs] if op in SEQUENTIAL else [set(jobs)]
        answers: dict[int, Result] = {}
        for ranks in rounds:
            for rank in ranks:
                self._threads[rank].ask(op, jobs[rank])
            answers |= self._gather(op, ranks, deadline)
        return [answers[rank] for rank in self._threads]

    def stop(self) -> None:
        """Let every thread close its service; wait for them at most `ABORT_SECONDS` in all, and only once."""
        if not self._dismiss.alive:
            return
        self._dismiss()
        deadline = Deadline(ABORT_SECONDS)
        for thread in self._threads.values():
            thread.ended(deadline)

    def end(self) -> None:
        """Break the waits of all ranks on each other, then stop."""
        if self._dismiss.alive:
            for thread in self._threads.values():
                thread.abort()
        self.stop()

    def _gather(self, op: str, ranks: set[int], deadline: Deadline) -> dict[int, Result]:
        answers: dict[int, Result] = {}
        while missing := ranks - answers.keys():
            try:
                outcome = self._outcomes.get(timeout=deadline.remaining)
            except queue.Empty:
                raise self._silence(op, sorted(missing), deadline) from None
            if outcome.event is not None:
                self._seen[outcome.rank] = self._seen[outcome.rank].after(outcome.event)
                self._on_event(outcome.event)
            elif outcome.error is not None:
                raise self._failed(outcome.rank, outcome.error) from outcome.error
            elif outcome.result is not None:
                answers[outcome.rank] = outcome.result
        return answers

    def _failed(self, rank: int, error: BaseException) -> LoadmasterError:
        return error_of(report_of(error), rank, self._seen[rank])

    def _silence(self, op: str, missing: Sequence[int], deadline: Deadline) -> LoadmasterError:
        silent = [Silent(rank, f"rank {rank}", self._seen[rank], self._threads[rank].stack()) for rank in missing]
        return silence(op, silent, deadline.seconds)


def _dismiss(threads: Sequence[RankThread]) -> None:
    """Have all threads close and end, also when their group is forgotten without being stopped."""
    for thread in threads:
        thread.finish()
