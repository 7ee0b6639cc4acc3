"""What the caller learns, and how soon, when a worker or the fork server dies, and what remains: nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from engine.executors.process_watch import becomes_true, marked
from engine.executors.toy_services import CRASHING, encode, specs
from loadmaster_engine.executors.multiprocess import crew
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory
from loadmaster_hookspecs.errors import ErrorReport, WorkerError
from loadmaster_hookspecs.events import Event, Failed, Stage, StageStarted
from loadmaster_hookspecs.executors import Executor

SOON = 5.0
"""Seconds that the news of a death may take at most; it takes milliseconds on an idle machine."""


def pid_of(mark: str, name: str) -> int:
    return next(pid for pid, comm in marked(mark).items() if comm == name)


def death(executor: Executor, op: str, body: object) -> ErrorReport:
    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        executor.call(op, encode(body), timeout=30)
    assert time.monotonic() - began < SOON
    return caught.value.report


def test_a_worker_killed_in_any_stage_is_named_with_that_stage(mark: str) -> None:
    def kill(event: Event) -> None:
        if isinstance(event, StageStarted):
            os.kill(pid_of(mark, "loadmaster-r0"), signal.SIGKILL)

    executor = MultiprocessFactory().create(preload=(), on_event=kill)
    for stage in get_args(Stage):
        with pytest.raises(WorkerError, match="rank 0 was killed by SIGKILL") as caught:
            executor.run_once(specs(1)[0], "stage", encode(stage), timeout=20)
        assert caught.value.report.where["stage"] == stage
    executor.stop()


@pytest.mark.parametrize("stage", ["manifest", "load", "serve"])
def test_a_killed_worker_is_named_with_signal_and_stage_and_the_other_ends(mark: str, stage: Stage) -> None:
    started = 0

    def kill_rank_1(event: Event) -> None:
        nonlocal started
        started += isinstance(event, StageStarted)
        if started == 2:
            started = 0
            os.kill(pid_of(mark, "loadmaster-r1"), signal.SIGKILL)

    executor = MultiprocessFactory().create(preload=(), on_event=kill_rank_1)
    executor.start(specs(2), timeout=20)
    report = death(executor, "stage", stage)
    assert report.code == "LM-WORKER-DIED"
    assert report.summary == "the worker of rank 1 was killed by SIGKILL"
    assert report.where["rank"] == 1
    assert report.where["stage"] == stage
    assert report.where["signal"] == "SIGKILL"
    assert f"process {report.where['pid']} " in report.why
    assert "out of memory" in report.hints[0]
    assert set(marked(mark).values()) == {"loadmaster-fork"}, "the other rank ends before the caller knows"
    executor.stop()


@pytest.mark.parametrize(
    ("number", "hint"),
    [(signal.SIGSEGV, "native code crashed"), (signal.SIGABRT, "stderr"), (signal.SIGTERM, "asked the process to end")],
)
def test_each_signal_has_its_hint_and_crashes_leave_a_stack(
    workers: Executor, events: list[Event], number: int, hint: str
) -> None:
    workers.start(specs(2), timeout=20)
    report = death(workers, "signal", number)
    assert report.where["signal"] == signal.Signals(number).name
    assert "12 of 100 bytes done" in report.why
    assert hint in report.hints[0]
    assert ("in do_signal" in report.traceback) == (number != signal.SIGTERM)
    assert events[-1] == Failed(rank=1, stage="load", code="LM-WORKER-DIED", summary=report.summary)


def test_a_file_that_shrinks_under_its_mapping_is_told_as_such(workers: Executor, tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(16384))
    workers.start(specs(2), timeout=20)
    report = death(workers, "shrunk_file", str(path))
    assert report.where["signal"] == "SIGBUS"
    assert "shrank while it was mapped" in report.hints[0]
    assert "do_shrunk_file" in report.traceback


def test_an_exit_past_the_interpreter_is_told_with_its_code(workers: Executor) -> None:
    workers.start(specs(2), timeout=20)
    report = death(workers, "exit", 3)
    assert (report.where["rank"], report.where["exit"]) == (0, 3)
    assert report.summary == "the worker of rank 0 exited with code 3"


def test_a_death_outranks_the_error_of_its_victim_that_was_told_before_it(
    workers: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "SETTLE_SECONDS", 5.0)
    workers.start(specs(2), timeout=20)
    assert death(workers, "fail_before_death", None).summary == "the worker of rank 1 was killed by SIGKILL"


def test_a_worker_that_dies_while_its_service_is_made(workers: Executor) -> None:
    with pytest.raises(WorkerError, match="rank 2 was killed by SIGKILL") as caught:
        workers.start(specs(3, CRASHING), timeout=20)
    assert caught.value.report.where["stage"] == "spawn"


def test_a_worker_that_dies_between_calls_is_found_by_the_next(workers: Executor, mark: str) -> None:
    workers.start(specs(2), timeout=20)
    os.kill(pid_of(mark, "loadmaster-r0"), signal.SIGKILL)
    assert "rank 0 was killed by SIGKILL" in death(workers, "echo", 1).summary


def test_a_worker_stuck_in_native_code_is_killed_when_another_dies(workers: Executor, mark: str) -> None:
    workers.start(specs(2), timeout=20)
    killer = threading.Timer(0.3, lambda: os.kill(pid_of(mark, "loadmaster-r1"), signal.SIGKILL))
    killer.start()
    assert death(workers, "busy", None).where["rank"] == 1
    killer.join()
    assert set(marked(mark).values()) == {"loadmaster-fork"}


def test_the_death_is_seen_although_a_child_of_the_worker_keeps_its_channel_open(workers: Executor, mark: str) -> None:
    workers.start(specs(2), timeout=20)
    workers.call("child", b"", timeout=5)
    os.kill(pid_of(mark, "loadmaster-r1"), signal.SIGKILL)  # which of the two carries the name first does not matter
    with pytest.raises(WorkerError) as caught:
        workers.call("wait", encode(60), timeout=10)
    assert caught.value.code in ("LM-WORKER-DIED", "LM-WORKER-TIMEOUT")
    workers.stop()
    assert becomes_true(lambda: not marked(mark), SOON), "what workers started goes with their session"


@pytest.mark.parametrize("op", ["wait", "busy"])
def test_when_the_fork_server_dies_its_workers_do_and_the_caller_knows(workers: Executor, mark: str, op: str) -> None:
    workers.start(specs(2), timeout=20)
    killer = threading.Timer(0.3, lambda: os.kill(pid_of(mark, "loadmaster-fork"), signal.SIGKILL))
    killer.start()
    report = death(workers, op, 60)
    killer.join()
    assert report.code == "LM-FORKSERVER-DIED"
    assert report.summary == "the fork server was killed by SIGKILL, and all workers with it"
    assert becomes_true(lambda: not marked(mark), SOON)
    workers.stop()
    workers.start(specs(1), timeout=20)
    assert msgspec.msgpack.decode(workers.call("echo", encode(1), timeout=5)[0].body) == [0, 1]


def test_a_fork_server_that_dies_while_it_imports_says_what(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly_module.py").write_text("import os; os._exit(7)")
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = MultiprocessFactory().create(preload=["deadly_module"], on_event=lambda event: None)
    with pytest.raises(WorkerError, match="exited with code 7 while it imported deadly_module") as caught:
        executor.start(specs(1), timeout=20)
    assert caught.value.code == "LM-FORKSERVER-DIED"
    executor.stop()


def test_an_interrupt_during_a_call_ends_the_workers_and_reaches_the_caller(workers: Executor, mark: str) -> None:
    workers.start(specs(2), timeout=20)
    caller = threading.main_thread().ident or 0
    interrupt = threading.Timer(0.3, lambda: signal.pthread_kill(caller, signal.SIGINT))
    interrupt.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        workers.call("busy", b"", timeout=30)
    assert time.monotonic() - began < SOON
    interrupt.join()
    assert set(marked(mark).values()) == {"loadmaster-fork"}
    with pytest.raises(WorkerError, match="KeyboardInterrupt"):
        workers.call("echo", b"", timeout=5)
