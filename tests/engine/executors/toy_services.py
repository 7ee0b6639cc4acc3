"""Services that do one simple thing per call, for tests of the executors. Each body is a msgpack value."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import msgspec

from engine.executors.process_watch import open_files
from loadmaster_engine.executors.failure import report_of
from loadmaster_engine.executors.multiprocess.bulk import write_sealed
from loadmaster_engine.executors.multiprocess.frames import Frame, pack
from loadmaster_engine.executors.multiprocess.messages import STARTED, Failure, Reply
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.events import Notice, Progress, StageFinished, StageStarted
from loadmaster_hookspecs.executors import EventSink, HostRecord, Result, WorkerSpec

TOY = "engine.executors.toy_services:Toy"
BROKEN = "engine.executors.toy_services:broken"
CRASHING = "engine.executors.toy_services:crashing"
SLOW = "engine.executors.toy_services:slow"

SLOW_SECONDS = 60.0

_barrier = threading.Barrier(2)


def specs(count: int, service: str = TOY) -> list[WorkerSpec]:
    host = HostRecord(factory="nobody:calls_it")
    return [WorkerSpec(rank=rank, world_size=count, service=service, host=host) for rank in range(count)]


def encode(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


class Toy:
    """Answers the call `op` with its method `do_op`."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.rank = spec.rank
        self.aborted = threading.Event()
        self.emit: EventSink = lambda event: None

    def handle(self, op: str, body: bytes, emit: EventSink) -> Result:
        self.emit = emit
        value = getattr(self, f"do_{op}")(msgspec.msgpack.decode(body) if body else None)
        return value if isinstance(value, Result) else Result(body=encode(value))

    def abort(self) -> None:
        self.aborted.set()

    def close(self) -> None:
        if path := os.environ.get("TOY_CLOSE_LOG"):
            with Path(path).open("a") as log:
                log.write(f"closed {self.rank} on {threading.current_thread().name}\n")

    def do_echo(self, value: object) -> object:
        return [self.rank, value]

    def do_pid(self, _: object) -> object:
        return os.getpid()

    def do_thread(self, _: object) -> object:
        return threading.current_thread().name

    def do_fail(self, culprit: int) -> object:
        self.emit(StageStarted(rank=self.rank, stage="load"))
        if self.rank == culprit:
            raise ValueError("boom-17\nand a second line")
        return "fine"

    def do_fail_late(self, plan: tuple[list[int], float]) -> object:
        """The ranks raise in the given order, 40 ms apart, from a given time on."""
        order, start = plan
        time.sleep(start + 0.04 * order.index(self.rank) - time.monotonic())
        raise ValueError(f"rank {self.rank}")

    def do_refuse(self, culprit: int) -> object:
        if self.rank == culprit:
            raise IntegrityError("LM-TOY", "the toy is damaged", where={"file": "toy.bin", "offset": 7}, hints=["buy another"])
        return "fine"

    def do_undecodable(self, _: object) -> object:
        raise ValueError("file \udcff")

    def do_quit(self, code: int) -> object:
        sys.exit(code)

    def do_exit(self, code: int) -> object:
        if self.rank == 0:
            os._exit(code)
        return self.do_wait(60)

    def do_signal(self, number: int) -> object:
        """Rank 1 sends itself a signal, having told a stage and its progress."""
        self.emit(StageStarted(rank=self.rank, stage="load"))
        if self.rank == 1:
            self.emit(Progress(rank=self.rank, stage="load", done=12, total=100))
            os.kill(os.getpid(), number)
        return self.do_wait(60)

    def do_fail_before_death(self, _: object) -> object:
        """Rank 0 reports an error shortly before rank 1 is killed, as when a lost connection is noticed before its cause."""
        if self.rank == 0:
            raise ConnectionError("the other rank is gone")
        time.sleep(0.04)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    def do_stage(self, stage: str) -> object:
        """Enter a stage and stay in it."""
        self.emit(msgspec.convert({"type": "StageStarted", "rank": self.rank, "stage": stage}, StageStarted))
        return self.do_wait(60)

    def do_wait(self, seconds: float) -> object:
        return self.aborted.wait(seconds)

    def do_sleep(self, seconds: float) -> object:
        """Wait in a way that `abort` does not reach."""
        time.sleep(seconds)
        return None

    def do_fail_while_others_wait(self, culprit: int) -> object:
        if self.rank == culprit:
            raise ValueError("boom-17")
        return self.do_wait(60)

    def do_wait_on(self, rank: int) -> object:
        """Only the given rank does not answer."""
        if self.rank == rank:
            self.emit(StageStarted(rank=self.rank, stage="serve"))
            self.do_wait(60)
        return "fine"

    def do_busy(self, _: object) -> object:
        """Stay in C code that never lets go of the interpreter lock."""
        self.emit(Notice(rank=self.rank, text="busy"))
        return sum(range(1 << 60))

    def do_stop_self(self, _: object) -> object:
        os.kill(os.getpid(), signal.SIGSTOP)
        return "continued"

    def do_freeze_later(self, _: object) -> object:
        """Answer, then stop the whole process."""
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
        return "soon"

    def do_bulk(self, nbytes: int) -> object:
        return Result(body=encode(self.rank), bulk=memoryview(pattern(self.rank, nbytes)))

    def do_huge_body(self, nbytes: int) -> object:
        return Result(body=bytes(nbytes))

    def do_events(self, _: object) -> object:
        self.emit(StageStarted(rank=self.rank, stage="load"))
        self.emit(Progress(rank=self.rank, stage="load", done=1, total=2))
        self.emit(Progress(rank=self.rank, stage="load", done=2, total=2))
        self.emit(StageFinished(rank=self.rank, stage="load", seconds=0.5, nbytes=2))
        return "done"

    def do_print(self, _: object) -> object:
        print("from python")
        os.write(1, b"from native code\n")
        return None

    def do_descriptors(self, _: object) -> object:
        return open_files(os.getpid())

    def do_environment(self, names: list[str]) -> object:
        return {name: os.environ.get(name) for name in names}

    def do_collector(self, _: object) -> object:
        """Whether garbage is collected, and whether most of what the fork server imported is exempt from it."""
        return [gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects())]

    def do_signals(self, _: object) -> object:
        """The signals that are ignored, blocked and caught, as the kernel sees them."""
        status = Path("/proc/self/status").read_text().splitlines()
        return {line.split(":")[0]: int(line.split()[1], 16) for line in status if line[:6] in ("SigBlk", "SigIgn", "SigCgt")}

    def do_meet(self, _: object) -> object:
        """Needs two ranks at once in one process."""
        return _barrier.wait(10)

    def do_reserve(self, seconds: float) -> object:
        """When this rank began and ended."""
        began = time.monotonic()
        time.sleep(seconds)
        return [began, time.monotonic()]

    def do_child(self, _: object) -> object:
        """Leave a process behind that holds on to everything inheritable."""
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        return pid

    def do_garbage(self, data: bytes) -> object:
        """Write to the channel past the protocol."""
        os.write(self._channel(), data)
        return self.do_wait(60)

    def do_stale(self, _: object) -> object:
        """Send answers to an earlier request, one with bulk memory, before the true one."""
        for message in (Reply(STARTED, b"stale"), Failure(STARTED, 0.0, report_of(ValueError("stale")))):
            os.write(self._channel(), pack(Frame(encode(message))))
        memory = write_sealed(b"stale")
        with socket.socket(fileno=os.dup(self._channel())) as channel:
            socket.send_fds(channel, [pack(Frame(encode(Reply(STARTED, b"", 5)), 1))], [memory])
        os.close(memory)
        return "fresh"

    def do_shrunk_file(self, path: str) -> object:
        """Rank 1 touches a page of a mapping whose file has lost that page."""
        if self.rank != 1:
            return self.do_wait(60)
        with Path(path).open("r+b") as file:
            view = mmap.mmap(file.fileno(), 0)
            file.truncate(0)
        return view[8000]

    def _channel(self) -> int:
        return next(number for number, target in open_files(os.getpid()).items() if target.startswith("socket:"))


def broken(spec: WorkerSpec) -> Toy:
    if spec.rank == spec.world_size - 1:
        raise RuntimeError("no service today")
    return Toy(spec)


def crashing(spec: WorkerSpec) -> Toy:
    if spec.rank == spec.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return Toy(spec)


def slow(spec: WorkerSpec) -> Toy:
    time.sleep(SLOW_SECONDS)
    return Toy(spec)


class Clinging(Toy):
    """Does not close."""

    def close(self) -> None:
        time.sleep(60)


def clinging(spec: WorkerSpec) -> Toy:
    return Clinging(spec)


def pattern(rank: int, nbytes: int) -> bytes:
    """Bytes that differ between ranks and places."""
    block = bytes((place * 7 + rank * 13 + place // 251) % 256 for place in range(65537))
    return (block * (nbytes // len(block) + 1))[:nbytes]
