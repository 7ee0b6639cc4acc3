"""The host's hold on its fork server and on every process below it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence

import msgspec

from loadmaster_engine.executors.deadline import Deadline
from loadmaster_engine.executors.multiprocess.channel import Channel, close_all, readable
from loadmaster_engine.executors.multiprocess.diagnosis import server_death
from loadmaster_engine.executors.multiprocess.handle import WorkerHandle
from loadmaster_engine.executors.multiprocess.launch import DEATH_SECONDS, exit_code, launch
from loadmaster_engine.executors.multiprocess.messages import (
    Exited,
    Fork,
    Forked,
    FromServer,
    FromWorker,
    Importing,
    NotForked,
    Setup,
    Unready,
)
from loadmaster_hookspecs.errors import ErrorReport, LoadmasterError, WorkerError, from_report
from loadmaster_hookspecs.executors import WorkerSpec

REAP_SECONDS = 5.0
"""How long the host waits for a killed process to be gone. Only one stuck in the kernel takes longer (storage that hangs)."""

LOOK_SECONDS = 0.1
"""How long a thread waits at most before it looks whether another one has taken in the notice that it waits for."""

_log = logging.getLogger(__name__)
_from_server: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


class Server:
    """A running fork server: takes requests for workers, and tells what becomes of them.

    Owns the server's process and its session with everything in it. `importing` is the module that the server imports at the
    moment, empty when it is ready.

    Groups of workers may use it from a thread each. Whichever thread takes in a notice leaves it with the worker's handle,
    where the worker's group finds it; the end of the server itself is raised in every thread that asks.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        self.importing = "its own modules"
        self._cause: ErrorReport | None = None
        self._owner = os.getpid()
        # A worker's descriptors may also be closed by the collector of garbage, on any thread and at any place.
        self._lock = threading.RLock()
        self._handles: dict[int, WorkerHandle] = {}
        """Workers by number, until their end is known."""
        self._last = 0
        ours, theirs = socket.socketpair()
        watched, self._liveness = os.pipe()
        self._control = Channel(ours, _from_server)
        self._descriptor = ours.fileno()
        try:
            self._process = launch(theirs.fileno(), watched)
        except BaseException:  # boundary: descriptors must not outlive a failed or interrupted start
            self._control.close()
            os.close(self._liveness)
            raise
        finally:
            theirs.close()
            os.close(watched)
        with contextlib.suppress(ConnectionError):  # it has died at once, which the first request will tell
            self._control.send(Setup(tuple(preload)), timeout=DEATH_SECONDS)

    def fork(self, spec: WorkerSpec, deadline: Deadline) -> WorkerHandle:
        """Ask for a worker. Its process starts once the server has imported everything; the service is made there."""
        ours, theirs = socket.socketpair()
        handle = WorkerHandle(spec.rank, Channel(ours, _from_worker))
        try:
            with self._lock:
                self._last += 1
                self._handles[self._last] = handle
                self._control.send(Fork(self._last, spec), (theirs.fileno(), handle.dump), timeout=deadline.remaining)
        except BaseException as error:  # boundary: a worker that nobody gets must not stay, whatever interrupts its start
            self.give_up([handle])
            if isinstance(error, TimeoutError):
                raise self._deafness(spec.rank, deadline) from None
            if isinstance(error, ConnectionError) or (self.ended and isinstance(error, Exception)):
                raise self._death() from None
            raise
        finally:
            theirs.close()
        return handle

    @property
    def ended(self) -> bool:
        """Whether the server and its workers have ended or been killed."""
        return self._cause is not None

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are notices; it belongs to something else once `ended`."""
        return self._descriptor

    def take_notices(self) -> None:
        """Take in what the server has to tell.

        Raises LoadmasterError, having ended everything, when the server has died or failed to import a module, and again
        whenever it is asked after that, or after `kill`.
        """
        with self._lock:
            if self._cause is not None:
                raise from_report(self._cause)
            alive = self._control.fill(wait=False) is not None
            while (envelope := self._control.take()) is not None:
                try:
                    self._note(envelope.message, envelope.descriptors)
                finally:
                    close_all(envelope.descriptors)
            if not alive:
                raise self._death()

    def await_exits(self, handles: Sequence[WorkerHandle], deadline: Deadline) -> None:
        """Take in notices until all workers have exited or could not be started, at most until the deadline."""
        while not deadline.expired and not all(handle.settled for handle in handles):
            if readable(self.fileno(), min(deadline.remaining, LOOK_SECONDS)) or self.ended:
                self.take_notices()

    def end_workers(self, handles: Sequence[WorkerHandle]) -> None:
        """Kill workers that still run and wait until they are gone. One that is not forked yet is left to `give_up`."""
        for handle in handles:
            handle.send_signal(signal.SIGKILL)
        with contextlib.suppress(LoadmasterError):  # the server has ended, and its workers with it
            self.await_exits([handle for handle in handles if handle.pid], Deadline(REAP_SECONDS))

    def give_up(self, handles: Sequence[WorkerHandle]) -> None:
        """Kill workers that still run, or are to come, without waiting for it, and close what belongs to them.

        Does nothing in a process that was forked from the host: the workers are not its own.
        """
        if self._owner == os.getpid():
            with self._lock:
                for handle in handles:
                    handle.close()

    def kill(self) -> None:
        """Kill the server with every process in its session and close its descriptors. Safe to call twice.

        Does nothing in a process that was forked from the host: the server is not its own.
        """
        if self._owner == os.getpid():
            self._end(WorkerError("LM-EXECUTOR-STOPPED", "the executor was stopped, and all workers with it"))

    def _death(self) -> LoadmasterError:
        with self._lock:
            if self._cause is not None:
                return from_report(self._cause)
            return self._end(server_death(self._process.pid, exit_code(self._process.pid), self.importing))

    def _deafness(self, rank: int, deadline: Deadline) -> WorkerError:
        return WorkerError(
            "LM-WORKER-TIMEOUT",
            f"the fork server took no request within {deadline.seconds:g} s",
            where={"rank": rank, "stage": "spawn", "op": "start"},
            why=f"it still imports {self.importing}" if self.importing else "",
            hints=["allow more time when the machine is slow or loaded"],
        )

    def _end(self, cause: LoadmasterError) -> LoadmasterError:
        """End everything unless that is done already, and return why it was."""
        with self._lock:
            if self._cause is not None:
                return from_report(self._cause)
            self._cause = cause.report
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its own group: the leader has not been reaped
            os.close(self._liveness)
            self._control.close()
        try:
            self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            _log.error("the fork server, process %d, does not end: it is stuck in the kernel", self._process.pid)
        return cause

    def _note(self, notice: FromServer, descriptors: tuple[int, ...]) -> None:
        match notice:
            case Importing(module=module):
                self.importing = module
            case Unready(module=module, report=report):
                raise self._end(from_report(report).located(preload=module))
            case Forked(worker=worker, pid=pid):
                self._handles[worker].born(pid, os.dup(descriptors[0]))
            case NotForked(worker=worker, reason=reason):
                self._handles.pop(worker).refusal = reason
            case Exited(worker=worker, code=code):
                self._handles.pop(worker).exited(code)
