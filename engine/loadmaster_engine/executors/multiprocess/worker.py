"""A worker process: from the fork to its exit. It makes one service and answers the host's calls, one at a time."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

import msgspec

from loadmaster_engine.executors.failure import report_of
from loadmaster_engine.executors.multiprocess.bulk import write_sealed
from loadmaster_engine.executors.multiprocess.channel import Channel
from loadmaster_engine.executors.multiprocess.kernel_ties import die_with_parent, set_process_name
from loadmaster_engine.executors.multiprocess.messages import (
    DUMP_SIGNAL,
    STARTED,
    Call,
    Failure,
    FromWorker,
    Reply,
    Told,
    ToWorker,
)
from loadmaster_engine.executors.rank_thread import make_service
from loadmaster_hookspecs.events import Event
from loadmaster_hookspecs.executors import Result, Service, WorkerSpec

_decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


def run_worker(spec: WorkerSpec, channel: int, dump: int, parent: int, forget: Callable[[], None]) -> NoReturn:
    """Be the worker of `spec` in a freshly forked child of process `parent`, then exit.

    `channel` is the descriptor of the socket to the host, `dump` that of the memfd for stack dumps. `forget` closes what the
    child inherited and must not keep. No clean-up of the fork server's own runs in this process.
    """
    code = 1
    try:
        forget()
        _become_worker(spec, dump, parent)
        code = _Conversation(Channel(socket.socket(fileno=channel), _decoder), spec).run()
    except BaseException:  # boundary: the process ends here; the host sees the exit code, people the text on stderr # noqa: BLE001
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _become_worker(spec: WorkerSpec, dump: int, parent: int) -> None:
    gc.enable()  # the fork server has it off
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
    set_process_name(f"loadmaster-r{spec.rank}")
    faulthandler.enable(dump)
    faulthandler.register(DUMP_SIGNAL, dump)
    if spec.threads:
        os.environ["OMP_NUM_THREADS"] = str(spec.threads)  # for libraries that are imported later
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(spec.threads)


class _Conversation:
    """The worker's side of its channel. Events may be sent from any thread of the service."""

    def __init__(self, channel: Channel[ToWorker], spec: WorkerSpec) -> None:
        self._channel = channel
        self._spec = spec
        self._sending = threading.Lock()

    def run(self) -> int:
        """Make the service, answer calls until told to stop, close the service, and return the exit code."""
        try:
            service = make_service(self._spec)
        except BaseException as error:  # boundary: the error belongs to the host # noqa: BLE001
            self._fail(STARTED, error)
            return 1
        self._send(Reply(STARTED))
        try:
            while (envelope := self._channel.receive()) is not None:
                match envelope.message:
                    case Call() as call:
                        self._answer(service, call)
                    case _:
                        break
        finally:
            service.close()
        return 0

    def _answer(self, service: Service, call: Call) -> None:
        try:
            self._reply(call.id, service.handle(call.op, call.body, self._emit))
        except BaseException as error:  # boundary: the error belongs to the host # noqa: BLE001
            self._fail(call.id, error)

    def _reply(self, request: int, result: Result) -> None:
        if result.bulk is None:
            self._send(Reply(request, result.body))
            return
        memory = write_sealed(result.bulk)
        try:
            self._send(Reply(request, result.body, os.fstat(memory).st_size), (memory,))
        finally:
            os.close(memory)

    def _fail(self, request: int, error: BaseException) -> None:
        self._send(Failure(request, time.monotonic(), report_of(error)))

    def _emit(self, event: Event) -> None:
        self._send(Told(event))

    def _send(self, message: FromWorker, descriptors: tuple[int, ...] = ()) -> None:
        with self._sending:
            self._channel.send(message, descriptors)
