"""A group of workers as the host drives it: start, calls, the first error, the end."""

from __future__ import annotations

import select
import weakref
from collections.abc import Sequence

import msgspec

from loadmaster_engine.executors.deadline import Deadline
from loadmaster_engine.executors.failure import Silent, error_of, silence
from loadmaster_engine.executors.multiprocess.bulk import map_sealed
from loadmaster_engine.executors.multiprocess.cgroup import oom_kills
from loadmaster_engine.executors.multiprocess.channel import Envelope, close_all
from loadmaster_engine.executors.multiprocess.diagnosis import WorkerEnd, worker_death
from loadmaster_engine.executors.multiprocess.frames import ProtocolError
from loadmaster_engine.executors.multiprocess.handle import WorkerHandle
from loadmaster_engine.executors.multiprocess.messages import STARTED, Call, Failure, FromWorker, Reply, Stop, Told
from loadmaster_engine.executors.multiprocess.server import LOOK_SECONDS, Server
from loadmaster_hookspecs.errors import LoadmasterError, WorkerError
from loadmaster_hookspecs.executors import EventSink, Result, WorkerSpec

SETTLE_SECONDS = 0.1
"""How long after a first error the host listens for an earlier one, or for the death of a worker that caused it."""

EXIT_SECONDS = 1.0
"""How long the host waits for the exit code of a worker whose channel has closed."""

STACK_SECONDS = 1.0
"""How long silent workers may take to write their stacks."""

STOP_SECONDS = 5.0
"""How long workers may take to close their services before they are killed."""

Arrival = tuple[WorkerHandle, Envelope[FromWorker]]


class Failing(msgspec.Struct, frozen=True):
    """A worker's report of its own failure."""

    handle: WorkerHandle
    failure: Failure


class Crew:
    """The workers of one group, in rank order. Used by one thread at a time; events are delivered on it.

    Other groups, used by other threads, may have workers from the same server. Workers of a forgotten group are killed.
    """

    def __init__(self, server: Server, specs: Sequence[WorkerSpec], on_event: EventSink) -> None:
        self._server = server
        self._specs = specs
        self._on_event = on_event
        self._handles: list[WorkerHandle] = []
        self._request = STARTED
        self._oom_kills = oom_kills()
        self._give_up = weakref.finalize(self, server.give_up, self._handles)

    def start(self, deadline: Deadline) -> None:
        """Have all workers forked, and wait until each has made its service."""
        for spec in self._specs:
            self._handles.append(self._server.fork(spec, deadline))
        self._gather("start", deadline)

    def call(self, op: str, bodies: Sequence[bytes], deadline: Deadline) -> list[Result]:
        """Send each worker its body and return the results in rank order."""
        self._request += 1
        for handle, body in zip(self._handles, bodies, strict=True):
            try:
                handle.channel.send(Call(self._request, op, body), timeout=deadline.remaining)
            except TimeoutError:
                raise self._silence(op, [handle], deadline) from None
            except OSError:
                pass  # it has just died; what it had to say first is still to be read
        answers = self._gather(op, deadline)
        return [answers[handle.rank] for handle in self._handles]

    def stop(self) -> None:
        """Ask all workers to close and exit; kill those that have not after `STOP_SECONDS`."""
        deadline = Deadline(STOP_SECONDS)
        try:
            for handle in self._handles:
                handle.channel.send(Stop(), timeout=deadline.remaining)
            while not deadline.expired and any(handle.code is None for handle in self._handles):
                for _, envelope in self._turn(deadline):
                    close_all(envelope.descriptors)
        except (LoadmasterError, OSError):
            pass  # a worker or the server is gone already; the rest is killed
        finally:
            self.end()

    def end(self) -> None:
        """Kill all workers and wait until they are gone. Safe to call twice."""
        if self._give_up.alive:
            self._server.end_workers(self._handles)
            self._give_up()

    def _turn(self, deadline: Deadline) -> list[Arrival]:
        """Wait until something happens, at most until the deadline; deliver events, and return the other messages."""
        poller = select.poll()
        poller.register(self._server, select.POLLIN)
        for handle in self._handles:
            if handle.open:
                poller.register(handle.channel, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(min(deadline.remaining, LOOK_SECONDS) * 1000)}
        if self._server.ended or self._server.fileno() in ready:
            self._server.take_notices()
        arrivals: list[Arrival] = []
        for handle in self._handles:
            if handle.open and (handle.channel.fileno() in ready or handle.code is not None):
                arrivals += [
                    (handle, envelope) for envelope in self._read(handle) if not self._deliver(handle, envelope.message)
                ]
        return arrivals

    def _read(self, handle: WorkerHandle) -> list[Envelope[FromWorker]]:
        try:
            return handle.read()
        except ProtocolError as error:
            raise error_of(error.report, handle.rank, handle.seen) from error

    def _deliver(self, handle: WorkerHandle, message: FromWorker) -> bool:
        if not isinstance(message, Told):
            return False
        handle.seen = handle.seen.after(message.event)
        self._on_event(message.event)
        return True

    def _gather(self, op: str, deadline: Deadline) -> dict[int, Result]:
        """Wait until every worker has answered the current request. Answers to earlier requests are dropped."""
        answers: dict[int, Result] = {}
        while len(answers) < len(self._handles):
            failures: list[Failing] = []
            for handle, envelope in self._turn(deadline):
                try:
                    match envelope.message:
                        case Reply(id=self._request) as reply:
                            answers[handle.rank] = _result(reply, envelope.descriptors)
                        case Failure(id=self._request) as failure:
                            failures.append(Failing(handle, failure))
                finally:
                    close_all(envelope.descriptors)
            if failures or any(handle.lost for handle in self._handles):
                raise self._first_error(failures)
            if deadline.expired and len(answers) < len(self._handles):
                raise self._silence(op, [handle for handle in self._handles if handle.rank not in answers], deadline)
        return answers

    def _first_error(self, failures: list[Failing]) -> LoadmasterError:
        """Return the error that came first. A death outranks reports: ranks that talked to the dead one fail because of it."""
        settle = Deadline(SETTLE_SECONDS)
        while not (lost := self._lost(failures)) and len(failures) < len(self._handles) and not settle.expired:
            for handle, envelope in self._turn(settle):
                if isinstance(envelope.message, Failure):
                    failures.append(Failing(handle, envelope.message))
                close_all(envelope.descriptors)
        if lost:
            return self._death(lost)
        first = min(failures, key=lambda failing: failing.failure.at)
        return error_of(first.failure.report, first.handle.rank, first.handle.seen)

    def _lost(self, failures: list[Failing]) -> list[WorkerHandle]:
        told = [failing.handle for failing in failures]
        return [handle for handle in self._handles if handle.lost and handle not in told]

    def _death(self, lost: list[WorkerHandle]) -> LoadmasterError:
        self._server.await_exits(lost, Deadline(EXIT_SECONDS))
        if refusal := next((handle.refusal for handle in lost if handle.refusal), ""):
            return WorkerError("LM-WORKER-FORK", "the system refused to start a worker", why=refusal)
        dead = min(lost, key=lambda handle: (handle.code is None, handle.ended))
        now = oom_kills()
        end = WorkerEnd(
            rank=dead.rank,
            pid=dead.pid,
            code=dead.code,
            seen=dead.seen,
            oom_kills=None if now is None or self._oom_kills is None else now - self._oom_kills,
            stack=dead.crash(),
        )
        return worker_death(end)

    def _silence(self, op: str, handles: Sequence[WorkerHandle], deadline: Deadline) -> LoadmasterError:
        for handle in handles:
            handle.ask_stacks()
        limit = Deadline(STACK_SECONDS)
        waits = f", which waits for the fork server to import {self._server.importing}" if self._server.importing else ""
        silent = [Silent(handle.rank, handle.label + waits, handle.seen, handle.stacks(limit)) for handle in handles]
        return silence(op, silent, deadline.seconds)


def _result(reply: Reply, descriptors: Sequence[int]) -> Result:
    if reply.bulk < 0:
        return Result(body=reply.body)
    if len(descriptors) != 1:
        raise ProtocolError("bulk memory without its descriptor", f"{len(descriptors)} descriptors came")
    return Result(body=reply.body, bulk=map_sealed(descriptors[0], reply.bulk))
