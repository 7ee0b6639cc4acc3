"""What every executor has in common: a group of ranks that starts, answers calls, and is refused after its first error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from loadmaster_engine.executors.deadline import Deadline
from loadmaster_engine.executors.failure import already_started, failed_event, not_started, one_each, refusal
from loadmaster_hookspecs.errors import ErrorReport, LoadmasterError, UsageError, from_report
from loadmaster_hookspecs.executors import EventSink, Result, WorkerSpec


class RankGroup(Protocol):
    """Ranks that work together. Used by one thread at a time; after an error only `end` may be called."""

    def start(self, deadline: Deadline) -> None:
        """Make every rank's service. Raises the first error of any rank."""
        ...

    def call(self, op: str, bodies: Sequence[bytes], deadline: Deadline) -> list[Result]:
        """Send one body to each rank and return the answers in rank order. Raises the first error of any rank."""
        ...

    def stop(self) -> None:
        """Let every rank close its service, within a bound, then `end` what is left."""
        ...

    def end(self) -> None:
        """Break off whatever runs and release everything. Safe to call twice."""
        ...


class Workplace(Protocol):
    """Where groups of ranks run. It owns what they share."""

    def prepare(self) -> None:
        """Begin what groups share and takes long. Does not wait for it."""
        ...

    def group(self, specs: Sequence[WorkerSpec]) -> RankGroup:
        """Return a group of one rank per spec, not yet started."""
        ...

    def beside(self, on_event: EventSink) -> Workplace:
        """Return a workplace over what this one shares, for use from another thread. Closing it leaves this one alone."""
        ...

    def close(self) -> None:
        """Release what the groups share, with everything still running in them. The workplace can be used again."""
        ...


class GroupExecutor:
    """The executor over one workplace. Use it from one thread at a time; those `beside` it may be used meanwhile.

    After an error of a call, or an interrupt during one, the ranks have ended: ranks that talk to each other are out of step
    once one of them failed. Further calls are refused with the first error's summary until `stop` and a new `start`.
    """

    def __init__(self, name: str, workplace: Workplace, on_event: EventSink) -> None:
        self._name = name
        self._workplace = workplace
        self._on_event = on_event
        self._group: RankGroup | None = None
        self._size = 0
        self._refusal: ErrorReport | None = None

    @property
    def name(self) -> str:
        """The executor's name, as the user chooses it."""
        return self._name

    def prepare(self) -> None:
        """Begin what takes long and needs no rank yet. Does not wait for it."""
        self._workplace.prepare()

    def run_once(self, spec: WorkerSpec, op: str, body: bytes, *, timeout: float) -> Result:
        """Make a service, send it one call, close it, and return the answer. Does not touch the started ranks."""
        deadline = Deadline(timeout)
        group = self._workplace.group([spec])
        with self._ending_on_error(group):
            group.start(deadline)
            (result,) = group.call(op, [body], deadline)
        group.stop()
        return result

    def start(self, specs: Sequence[WorkerSpec], *, timeout: float) -> None:
        """Start one rank per spec and return when all of them answer."""
        if self._group is not None:
            raise already_started()
        if not specs:
            raise UsageError("LM-EXECUTOR-SPECS", "there is no rank to start")
        self._group = self._workplace.group(specs)
        self._size = len(specs)
        with self._refusing_after_error(), self._ending_on_error(self._group):
            self._group.start(Deadline(timeout))

    def call(self, op: str, bodies: bytes | Sequence[bytes], *, timeout: float) -> list[Result]:
        """Send one call to every rank (one body for all, or one each) and return the answers in rank order."""
        if self._group is None:
            raise not_started()
        if self._refusal is not None:
            raise from_report(self._refusal)
        each = one_each(bodies, self._size)
        with self._refusing_after_error(), self._ending_on_error(self._group):
            return self._group.call(op, each, Deadline(timeout))

    def stop(self) -> None:
        """End all ranks: ask, then force. Safe to call twice; the executor can then be started again."""
        group, self._group = self._group, None
        try:
            if group is not None and self._refusal is None:
                group.stop()
        finally:
            self._refusal = None
            if group is not None:
                group.end()
            self._workplace.close()

    def beside(self, *, on_event: EventSink) -> GroupExecutor:
        """Return an executor with ranks of its own over what this one has prepared, for use from another thread."""
        return GroupExecutor(self._name, self._workplace.beside(on_event), on_event)

    @contextmanager
    def _refusing_after_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as cause:  # boundary: whatever ended the ranks is what later calls are told
            self._refusal = refusal(cause)
            raise

    @contextmanager
    def _ending_on_error(self, group: RankGroup) -> Iterator[None]:
        try:
            yield
        except LoadmasterError as error:
            group.end()
            self._on_event(failed_event(error))
            raise
        except BaseException:  # boundary: no process may outlive the call that was interrupted
            group.end()
            raise
