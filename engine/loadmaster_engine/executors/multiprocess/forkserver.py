"""The fork server: a fresh, single-threaded interpreter that imports the heavy modules once and forks workers on request.

It is started by the host with `python -c` (see `server`), answers to the host alone and ends with it: the kernel kills it when
the host's end of the liveness pipe closes, and its loop ends when the control channel closes or the host's pidfd says so.
"""

from __future__ import annotations

import gc
import importlib
import os
import selectors
import signal
import socket
import sys

import msgspec

from loadmaster_engine.executors.failure import report_of
from loadmaster_engine.executors.multiprocess.channel import Channel, close_all
from loadmaster_engine.executors.multiprocess.kernel_ties import die_with_pipe, set_process_name
from loadmaster_engine.executors.multiprocess.messages import (
    Exited,
    Fork,
    Forked,
    FromServer,
    Importing,
    NotForked,
    Setup,
    ToServer,
    Unready,
)
from loadmaster_engine.executors.multiprocess.worker import run_worker

NOTICE_SECONDS = 10.0
"""How long a notice to the host may take. The host reads notices whenever it waits, and the socket holds thousands."""

_decoder: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)


def main(control: int, liveness: int, host: int) -> None:
    """Serve the process `host` over the socket `control` until it ends; `liveness` is the read end of its pipe."""
    for descriptor in (control, liveness):
        os.set_inheritable(descriptor, False)
    die_with_pipe(liveness)
    if os.getppid() != host:
        return  # the host ended before the pipe was armed
    gc.disable()  # for good: see `_import`
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a host that ignores it hands that down, and exit codes would be lost
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    set_process_name("loadmaster-fork")
    _ForkServer(Channel(socket.socket(fileno=control), _decoder), liveness, os.pidfd_open(host)).run()


class _ForkServer:
    def __init__(self, control: Channel[ToServer], liveness: int, host: int) -> None:
        self._control = control
        self._liveness = liveness
        self._host = host
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, tuple[int, int]] = {}
        """Worker number and pid by pidfd."""

    def run(self) -> None:
        """Import what the host wants, then serve it. Returns when the host is gone; the workers end with this process."""
        first = self._control.receive()
        if first is None or not isinstance(first.message, Setup) or not self._import(first.message.preload):
            return
        for descriptor in (self._control.fileno(), self._host):
            self._selector.register(descriptor, selectors.EVENT_READ)
        # Requests may have come with the first message, before there was a selector to announce them.
        self._obey()
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._workers:
                    self._reap(key.fd)
                elif key.fd == self._host or self._control.fill(wait=False) is None:
                    return
            self._obey()

    def _import(self, modules: tuple[str, ...]) -> bool:
        for module in modules:
            self._notify(Importing(module))
            try:
                importlib.import_module(module)
            except BaseException as error:  # boundary: the host raises it # noqa: BLE001
                self._notify(Unready(module, report_of(error)))
                return False
        # What is here now stays: a worker's collector must not touch, and so copy, the shared pages. Nothing is collected
        # first, because that leaves holes which workers would fill, and copy, as well; and it would find some megabytes only.
        gc.freeze()
        self._notify(Importing(""))
        return True

    def _obey(self) -> None:
        while (envelope := self._control.take()) is not None:
            if isinstance(envelope.message, Fork):
                self._fork(envelope.message, envelope.descriptors)
            close_all(envelope.descriptors)

    def _fork(self, request: Fork, descriptors: tuple[int, ...]) -> None:
        channel, dump = descriptors
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            self._notify(NotForked(request.worker, str(error)))
            return
        if pid == 0:
            run_worker(request.spec, channel, dump, parent, self._forget)
        pidfd = os.pidfd_open(pid)
        self._workers[pidfd] = (request.worker, pid)
        self._selector.register(pidfd, selectors.EVENT_READ)
        self._notify(Forked(request.worker, pid), (pidfd,))

    def _forget(self) -> None:
        """Close, in a new worker, all that belongs to the server or to other workers."""
        self._selector.close()
        self._control.close()
        for descriptor in (self._liveness, self._host, *self._workers):
            os.close(descriptor)

    def _reap(self, pidfd: int) -> None:
        worker, pid = self._workers.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._notify(Exited(worker, os.waitstatus_to_exitcode(status)))

    def _notify(self, notice: FromServer, descriptors: tuple[int, ...] = ()) -> None:
        self._control.send(notice, descriptors, timeout=NOTICE_SECONDS)
