"""The host's hold on its fork server and on every process below it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from loadmaster_engine.executors.deadline import Deadline
from loadmaster_engine.executors.multiprocess.channel import Channel, close_all, readable
from loadmaster_engine.executors.multiprocess.diagnosis import server_death
from loadmaster_engine.executors.multiprocess.handle import WorkerHandle
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
from loadmaster_hookspecs.errors import LoadmasterError, WorkerError, from_report
from loadmaster_hookspecs.executors import WorkerSpec

REAP_SECONDS = 5.0
"""How long the host waits for a killed process to be gone. Only one stuck in the kernel takes longer (storage that hangs)."""

_DEATH_SECONDS = 1.0

_BOOT = (
    "import sys; sys.path[:] = sys.argv[4:]; "
    "from loadmaster_engine.executors.multiprocess.forkserver import main; main(*map(int, sys.argv[1:4]))"
)

_log = logging.getLogger(__name__)
_from_server: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


class Server:
    """A running fork server: takes requests for workers, and tells what becomes of them.

    Owns the server's process, its session with everything in it, and the descriptors of all its workers. `importing` is the
    module that the server imports at the moment, empty when it is ready.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        self.importing = "its own modules"
        self._cause: LoadmasterError | None = None
        self._ended = False
        self._owner = os.getpid()
        self._handles: dict[int, WorkerHandle] = {}
        self._last = 0
        ours, theirs = socket.socketpair()
        watched, self._liveness = os.pipe()
        self._control = Channel(ours, _from_server)
        try:
            self._process = _launch(theirs.fileno(), watched)
        except BaseException:  # boundary: descriptors must not outlive a failed or interrupted start
            self._control.close()
            os.close(self._liveness)
            raise
        finally:
            theirs.close()
            os.close(watched)
        with contextlib.suppress(ConnectionError):  # it has died at once, which the first request will tell
            self._control.send(Setup(tuple(preload)), timeout=_DEATH_SECONDS)

    def fork(self, spec: WorkerSpec, deadline: Deadline) -> WorkerHandle:
        """Ask for a worker. Its process starts once the server has imported everything; the service is made there."""
        ours, theirs = socket.socketpair()
        handle = WorkerHandle(spec.rank, Channel(ours, _from_worker))
        self._last += 1
        self._handles[self._last] = handle
        try:
            self._control.send(Fork(self._last, spec), (theirs.fileno(), handle.dump), timeout=deadline.remaining)
        except ConnectionError:
            raise self._death() from None
        except TimeoutError:
            raise self._deafness(spec.rank, deadline) from None
        finally:
            theirs.close()
        return handle

    @property
    def ended(self) -> bool:
        """Whether the server and its workers have ended or been killed."""
        return self._ended

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are notices; -1 once ended."""
        return self._control.fileno()

    def take_notices(self) -> None:
        """Take in what the server has to tell.

        Raises LoadmasterError, having ended everything, when the server has died or failed to import a module, and again
        whenever it is asked after that; also when it could not start a worker.
        """
        if self._cause is not None:
            raise self._cause
        alive = self._control.fill(wait=False) is not None
        while (envelope := self._control.take()) is not None:
            try:
                self._note(envelope.message, envelope.descriptors)
            finally:
                close_all(envelope.descriptors)
        if not alive:
            raise self._death()

    def await_exits(self, handles: Sequence[WorkerHandle], deadline: Deadline) -> None:
        """Take in notices until all workers have exited, at most until the deadline."""
        while not deadline.expired and any(handle.code is None for handle in handles):
            if readable(self.fileno(), deadline.remaining):
                self.take_notices()

    def release(self, handles: Sequence[WorkerHandle]) -> None:
        """Kill workers that still run, wait until they are gone, and close what belongs to them."""
        # A worker that is not forked yet is forgotten here, and killed when its notice comes.
        self._handles = {number: handle for number, handle in self._handles.items() if handle not in handles or handle.pid}
        for handle in handles:
            handle.send_signal(signal.SIGKILL)
        try:
            if not self._ended:
                self.await_exits([handle for handle in handles if handle.pid], Deadline(REAP_SECONDS))
        except LoadmasterError:
            pass  # the server has ended, and its workers with it
        finally:
            for handle in handles:
                handle.close()
            self._handles = {number: handle for number, handle in self._handles.items() if handle not in handles}

    def kill(self) -> None:
        """Kill the server with every process in its session and close all descriptors. Safe to call twice.

        Does nothing in a process that was forked from the host: the server is not its own.
        """
        if self._ended or self._owner != os.getpid():
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its own group: the leader has not been reaped
        os.close(self._liveness)
        self._control.close()
        for handle in self._handles.values():
            handle.close()
        try:
            self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            _log.error("the fork server, process %d, does not end: it is stuck in the kernel", self._process.pid)

    def _death(self) -> LoadmasterError:
        return self._end(server_death(self._process.pid, _exit_code(self._process.pid), self.importing))

    def _deafness(self, rank: int, deadline: Deadline) -> WorkerError:
        return WorkerError(
            "LM-WORKER-TIMEOUT",
            f"the fork server took no request within {deadline.seconds:g} s",
            where={"rank": rank, "stage": "spawn", "op": "start"},
            why=f"it still imports {self.importing}" if self.importing else "",
            hints=["allow more time when the machine is slow or loaded"],
        )

    def _end(self, cause: LoadmasterError) -> LoadmasterError:
        self._cause = cause
        self.kill()
        return cause

    def _note(self, notice: FromServer, descriptors: tuple[int, ...]) -> None:
        match notice:
            case Importing(module=module):
                self.importing = module
            case Unready(module=module, report=report):
                raise self._end(from_report(report).located(preload=module))
            case Forked(worker=worker, pid=pid) if worker in self._handles:
                self._handles[worker].born(pid, os.dup(descriptors[0]))
            case Forked():
                signal.pidfd_send_signal(descriptors[0], signal.SIGKILL)  # given up before it was forked
            case NotForked(worker=worker, reason=reason) if worker in self._handles:
                raise WorkerError("LM-WORKER-FORK", "the system refused to start a worker", why=reason)
            case Exited(worker=worker, code=code) if worker in self._handles:
                self._handles[worker].exited(code)


def _launch(control: int, liveness: int) -> subprocess.Popen[bytes]:
    """Start a fresh interpreter in a session of its own. It sees this process's module path, stderr and nothing else."""
    # What libraries print there must not reach the host's stdout; without a stderr, descriptor 2 may be anything.
    output = subprocess.DEVNULL if sys.__stderr__ is None else 2
    try:
        return subprocess.Popen(
            [sys.executable, "-u", "-c", _BOOT, str(control), str(liveness), str(os.getpid()), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(control, liveness),
            start_new_session=True,
        )
    except OSError as error:
        raise WorkerError("LM-FORKSERVER-LAUNCH", "the system refused to start the fork server", why=str(error)) from error


def _exit_code(pid: int) -> int | None:
    """Return how a child ended, without reaping it, so that its process group stays its own; None if it still runs."""
    with contextlib.suppress(ChildProcessError, ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            readable(pidfd, _DEATH_SECONDS)
        finally:
            os.close(pidfd)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if end is not None:
            return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
    return None
