"""Executors beside another one: their workers come from the same fork server, on other threads; each sees its own errors."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from engine.executors.process_watch import becomes_true, marked
from engine.executors.toy_services import BROKEN, encode, specs
from loadmaster_engine.executors.deadline import Deadline
from loadmaster_engine.executors.multiprocess.channel import Channel
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory
from loadmaster_engine.executors.multiprocess.handle import WorkerHandle
from loadmaster_engine.executors.multiprocess.messages import STARTED, FromWorker, Reply, ToWorker
from loadmaster_engine.executors.multiprocess.server import Server
from loadmaster_hookspecs.errors import LoadmasterError, UsageError, WorkerError
from loadmaster_hookspecs.events import Event, Failed
from loadmaster_hookspecs.executors import Executor

SOON = 5.0
"""Seconds until an error must have reached its thread; milliseconds are usual."""

FORKS_TWICE = """
import os
fork, left = os.fork, [2]
def refuse_the_third():
    if not left[0]:
        raise BlockingIOError(11, 'Resource temporarily unavailable')
    left[0] -= 1
    return fork()
os.fork = refuse_the_third
"""


def ignore(event: Event) -> None:
    """Receive an event that the test does not look at."""


def ask(executor: Executor, op: str, value: object = None, timeout: float = 20) -> list[object]:
    return [msgspec.msgpack.decode(result.body) for result in executor.call(op, encode(value), timeout=timeout)]


def pids(executor: Executor) -> list[int]:
    return [int(str(pid)) for pid in ask(executor, "pid")]


def error_in(work: Callable[[], object]) -> tuple[LoadmasterError, float]:
    """Return the error that `work` ends with, and the seconds that it took to come."""
    began = time.monotonic()
    with pytest.raises(LoadmasterError) as caught:
        work()
    return caught.value, time.monotonic() - began


def test_workers_beside_come_from_the_same_server_and_know_what_it_imported(workers: Executor, mark: str) -> None:
    workers.start(specs(2), timeout=20)
    beside = workers.beside(on_event=ignore)
    beside.start(specs(1), timeout=20)
    assert sorted(marked(mark).values()) == ["loadmaster-fork", "loadmaster-r0", "loadmaster-r0", "loadmaster-r1"]
    assert ask(beside, "echo", 7) == [[0, 7]]
    assert ask(workers, "echo", 8) == [[0, 8], [1, 8]]
    beside.stop()
    assert sorted(marked(mark).values()) == ["loadmaster-fork", "loadmaster-r0", "loadmaster-r1"]
    beside.start(specs(1), timeout=20)
    assert ask(beside, "echo", 9) == [[0, 9]]
    beside.stop()


def test_inline_ranks_beside_are_their_own(inline: Executor) -> None:
    inline.start(specs(2), timeout=5)
    beside = inline.beside(on_event=ignore)
    beside.start(specs(1), timeout=5)
    with pytest.raises(WorkerError, match="boom-17"):
        ask(beside, "fail", 0)
    beside.stop()
    assert ask(inline, "echo", 1) == [[0, 1], [1, 1]]


def test_nothing_starts_beside_what_was_not_prepared_or_has_stopped(workers: Executor, mark: str) -> None:
    beside = workers.beside(on_event=ignore)
    for _ in range(2):
        with pytest.raises(UsageError) as caught:
            beside.start(specs(1), timeout=5)
        assert caught.value.code == "LM-EXECUTOR-NOT-PREPARED"
        assert becomes_true(lambda: not marked(mark), SOON)
        workers.prepare()
        workers.stop()
    workers.prepare()
    beside.start(specs(1), timeout=20)
    beside.stop()


def test_each_side_sees_its_own_errors_and_deaths_only(workers: Executor, events: list[Event]) -> None:
    noticed: list[Event] = []
    beside = workers.beside(on_event=noticed.append)
    workers.start(specs(2), timeout=20)
    beside.start(specs(1), timeout=20)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, workers, "wait", 1.0)
        threading.Timer(0.2, os.kill, (pids(beside)[0], signal.SIGKILL)).start()
        error, seconds = error_in(lambda: ask(beside, "wait", 60))
        assert (error.code, seconds < SOON) == ("LM-WORKER-DIED", True)
        assert waiting.result(SOON) == [False, False]
    assert not events
    assert [type(event) for event in noticed] == [Failed]
    beside.stop()
    beside.start(specs(1), timeout=20)
    with pytest.raises(WorkerError, match="boom-17"):
        ask(workers, "fail", 1)
    assert ask(beside, "echo", 1) == [[0, 1]]
    beside.stop()


def test_the_end_of_the_server_is_told_to_both(workers: Executor, mark: str) -> None:
    beside = workers.beside(on_event=ignore)
    workers.start(specs(2), timeout=20)
    beside.start(specs(1), timeout=20)
    server = next(pid for pid, name in marked(mark).items() if name == "loadmaster-fork")
    threading.Timer(0.2, os.kill, (server, signal.SIGKILL)).start()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(error_in, lambda: ask(beside, "wait", 60))
        for error, seconds in (error_in(lambda: ask(workers, "wait", 60)), other.result(20)):
            assert (error.code, seconds < SOON) == ("LM-FORKSERVER-DIED", True)
    beside.stop()


def test_stopping_the_first_ends_those_beside_it_also_during_a_call(workers: Executor, mark: str) -> None:
    beside = workers.beside(on_event=ignore)
    idle = workers.beside(on_event=ignore)
    workers.start(specs(1), timeout=20)
    beside.start(specs(1), timeout=20)
    idle.start(specs(1), timeout=20)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(error_in, lambda: ask(beside, "wait", 60))
        time.sleep(0.2)
        workers.stop()
        assert becomes_true(lambda: not marked(mark), SOON)
        for error, seconds in (calling.result(SOON), error_in(lambda: ask(idle, "echo"))):
            assert (error.code, seconds < SOON) == ("LM-EXECUTOR-STOPPED", True)
    beside.stop()
    idle.stop()


def test_a_forgotten_executor_beside_ends_its_workers_alone(workers: Executor, mark: str) -> None:
    workers.start(specs(1), timeout=20)
    beside = workers.beside(on_event=ignore)
    beside.start(specs(1), timeout=20)
    del beside
    gc.collect()
    assert becomes_true(lambda: len(marked(mark)) == 2, SOON)
    assert ask(workers, "echo", 1) == [[0, 1]]


def test_a_refused_fork_beside_leaves_the_ranks_alone(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forks_twice.py").write_text(FORKS_TWICE)
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = MultiprocessFactory().create(preload=["forks_twice"], on_event=ignore)
    executor.start(specs(2), timeout=20)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, executor, "wait", 1.0)
        beside = executor.beside(on_event=ignore)
        for _ in range(5):
            error, seconds = error_in(lambda: beside.start(specs(1), timeout=20))
            assert (error.code, seconds < SOON) == ("LM-WORKER-FORK", True)
            assert "temporarily unavailable" in error.report.why
            beside.stop()
        assert waiting.result(SOON) == [False, False]
    executor.stop()


def test_a_death_is_seen_although_the_other_thread_takes_in_its_notice(workers: Executor, mark: str) -> None:
    beside = workers.beside(on_event=ignore)
    workers.start(specs(2), timeout=20)
    ask(workers, "child")  # it keeps the channels of dead workers open
    beside.start(specs(1), timeout=20)
    (_, dying) = pids(workers)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(error_in, lambda: ask(workers, "wait", 60, timeout=60))
        time.sleep(0.1)
        os.kill(dying, signal.SIGKILL)
        while not waiting.done():
            ask(beside, "echo")
        error, seconds = waiting.result()
    assert (error.code, error.report.where["rank"], seconds < SOON) == ("LM-WORKER-DIED", 1, True)
    beside.stop()


def test_what_a_worker_said_last_is_read_although_its_exit_was_noted_before() -> None:
    ours, theirs = socket.socketpair()
    handle = WorkerHandle(0, Channel(ours, msgspec.msgpack.Decoder(FromWorker)))
    told = Channel(theirs, msgspec.msgpack.Decoder(ToWorker))
    told.send(Reply(STARTED, b"the last"))
    handle.exited(1)  # noted by another thread
    assert not handle.lost
    assert [envelope.message for envelope in handle.read()] == [Reply(STARTED, b"the last")]
    assert handle.lost
    handle.close()
    told.close()


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Let threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("eager_threads")
def test_threads_that_fork_fail_and_call_at_once_get_what_is_theirs(workers: Executor) -> None:
    workers.start(specs(2), timeout=20)
    end = time.monotonic() + 2.0

    def calling() -> int:
        count = 0
        while time.monotonic() < end:
            count += 1
            assert ask(workers, "echo", count) == [[0, count], [1, count]]
        return count

    def forking(number: int) -> int:
        beside, count = workers.beside(on_event=ignore), 0
        while time.monotonic() < end:
            count += 1
            answer = beside.run_once(specs(1)[0], "echo", encode(number), timeout=20)
            assert msgspec.msgpack.decode(answer.body) == [0, number]
            with pytest.raises(WorkerError, match="no service today"):  # never that it has exited
                beside.run_once(specs(1, BROKEN)[0], "echo", b"", timeout=20)
            beside.start(specs(2), timeout=20)
            os.kill(pids(beside)[1], signal.SIGKILL)
            with pytest.raises(WorkerError, match="rank 1 was killed by SIGKILL"):
                ask(beside, "wait", 60)
            beside.stop()
        return count

    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(calling), pool.submit(forking, 1), pool.submit(forking, 2)]
        assert all(job.result(60) for job in jobs)


@pytest.mark.usefixtures("eager_threads", "mark")
def test_every_notice_finds_its_worker_whichever_thread_takes_it_in() -> None:
    server = Server(())

    def forking(count: int) -> None:
        for _ in range(count):
            deadline = Deadline(20)
            handle = server.fork(specs(1)[0], deadline)
            while not handle.pid and not deadline.expired:
                server.take_notices()
            server.end_workers([handle])
            assert handle.code == -signal.SIGKILL
            server.give_up([handle])

    try:
        with ThreadPoolExecutor(6) as pool:
            for job in [pool.submit(forking, 25) for _ in range(6)]:
                job.result(60)
    finally:
        server.kill()
