"""The executor that runs ranks in the caller's process."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest

from engine.executors.process_watch import becomes_true, children
from engine.executors.toy_services import BROKEN, SLOW, encode, specs
from loadmaster_engine.executors import inline as inline_module
from loadmaster_engine.executors.inline import SEQUENTIAL, InlineFactory
from loadmaster_hookspecs.errors import IntegrityError, UsageError, WorkerError
from loadmaster_hookspecs.events import Event, Failed, Progress, StageFinished, StageStarted
from loadmaster_hookspecs.executors import Executor, Result


def values(results: list[Result]) -> list[object]:
    return [msgspec.msgpack.decode(result.body) for result in results]


def rank_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("loadmaster-r")}


def test_a_single_rank_runs_on_the_callers_own_thread_and_process(inline: Executor, close_log: Path) -> None:
    before = (threading.active_count(), set(children(os.getpid())))
    inline.start(specs(1), timeout=5)
    assert values(inline.call("pid", b"", timeout=5)) == [os.getpid()]
    assert values(inline.call("thread", b"", timeout=5)) == ["MainThread"]
    assert (threading.active_count(), set(children(os.getpid()))) == before
    inline.stop()
    inline.stop()
    assert close_log.read_text() == "closed 0 on MainThread\n"


def test_several_ranks_keep_a_thread_each_until_stopped(inline: Executor, close_log: Path) -> None:
    inline.start(specs(3), timeout=5)
    for _ in range(2):
        assert values(inline.call("thread", b"", timeout=5)) == ["loadmaster-r0", "loadmaster-r1", "loadmaster-r2"]
    assert values(inline.call("pid", b"", timeout=5)) == [os.getpid()] * 3
    inline.stop()
    assert not rank_threads()
    assert sorted(close_log.read_text().splitlines()) == [f"closed {rank} on loadmaster-r{rank}" for rank in range(3)]


def test_ranks_can_wait_for_each_other_in_a_call(inline: Executor) -> None:
    inline.start(specs(2), timeout=5)
    assert sorted(msgspec.msgpack.decode(result.body) for result in inline.call("meet", b"", timeout=5)) == [0, 1]


def test_calls_named_after_loading_stages_go_to_one_rank_after_another(inline: Executor) -> None:
    assert "reserve" in SEQUENTIAL
    inline.start(specs(3), timeout=5)
    spans = [msgspec.convert(value, tuple[float, float]) for value in values(inline.call("reserve", encode(0.02), timeout=5))]
    assert spans == sorted(spans)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))


def test_each_rank_can_get_a_body_of_its_own(inline: Executor) -> None:
    inline.start(specs(2), timeout=5)
    assert values(inline.call("echo", [encode("a"), encode("b")], timeout=5)) == [[0, "a"], [1, "b"]]
    with pytest.raises(UsageError):
        inline.call("echo", [b""] * 3, timeout=5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_exception_is_told_as_by_workers_and_keeps_its_cause(inline: Executor, events: list[Event], ranks: int) -> None:
    inline.start(specs(ranks), timeout=5)
    culprit = ranks - 1
    with pytest.raises(WorkerError) as caught:
        inline.call("fail", encode(culprit), timeout=5)
    assert caught.value.report.where == {"rank": culprit, "stage": "load"}
    assert caught.value.report.summary == "a rank failed with ValueError: boom-17"
    assert "in do_fail" in caught.value.report.traceback
    assert isinstance(caught.value.__cause__, ValueError)
    assert events[-1] == Failed(rank=culprit, stage="load", code="LM-WORKER-FAILED", summary=caught.value.report.summary)
    with pytest.raises(WorkerError, match="boom-17") as refused:
        inline.call("echo", b"", timeout=5)
    assert refused.value.code == "LM-EXECUTOR-ENDED"


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_error_on_purpose_arrives_as_it_was_raised(inline: Executor, ranks: int) -> None:
    inline.start(specs(ranks), timeout=5)
    with pytest.raises(IntegrityError) as caught:
        inline.call("refuse", encode(0), timeout=5)
    assert caught.value.report.where == {"rank": 0, "stage": "spawn", "file": "toy.bin", "offset": 7}


def test_when_one_rank_fails_the_waits_of_the_others_are_aborted(inline: Executor, close_log: Path) -> None:
    inline.start(specs(3), timeout=5)
    began = time.monotonic()
    with pytest.raises(WorkerError, match="boom-17"):
        inline.call("fail_while_others_wait", encode(1), timeout=30)
    assert time.monotonic() - began < 2.0
    assert not rank_threads()
    assert len(close_log.read_text().splitlines()) == 3, "each service is closed once, by its own thread"


def test_the_error_that_came_first_in_time_wins(inline: Executor) -> None:
    inline.start(specs(3), timeout=5)
    with pytest.raises(WorkerError, match="ValueError: rank 2"):
        inline.call("fail_late", encode([[2, 0, 1], time.monotonic() + 0.2]), timeout=5)


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_exception_while_a_service_is_made(inline: Executor, close_log: Path, ranks: int) -> None:
    with pytest.raises(WorkerError, match="no service today") as caught:
        inline.start(specs(ranks, BROKEN), timeout=5)
    assert caught.value.report.where == {"rank": ranks - 1, "stage": "spawn"}
    inline.stop()
    assert len(close_log.read_text().splitlines()) == ranks - 1
    inline.start(specs(1), timeout=5)
    assert values(inline.call("echo", encode(1), timeout=5)) == [[0, 1]]


def test_silent_ranks_are_named_with_their_stacks(inline: Executor) -> None:
    inline.start(specs(3), timeout=5)
    with pytest.raises(WorkerError) as caught:
        inline.call("wait_on", encode(1), timeout=0.2)
    report = caught.value.report
    assert report.summary == "no answer to 'wait_on' from rank 1 within 0.2 s"
    assert report.where == {"rank": 1, "stage": "serve", "op": "wait_on"}
    assert "in do_wait_on" in report.traceback
    assert not rank_threads(), "abort brought the silent rank back"


def test_a_rank_that_does_not_come_back_is_left_behind_within_the_bound(
    inline: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_module, "ABORT_SECONDS", 0.2)
    inline.start(specs(2), timeout=5)
    began = time.monotonic()
    with pytest.raises(WorkerError, match="rank 0, 1"):
        inline.call("sleep", encode(2.0), timeout=0.1)
    assert time.monotonic() - began < 1.8
    assert rank_threads() == {"loadmaster-r0", "loadmaster-r1"}
    assert becomes_true(lambda: not rank_threads(), 5.0)


def test_an_interrupt_while_ranks_work_aborts_them(inline: Executor) -> None:
    inline.start(specs(2), timeout=5)
    caller = threading.main_thread().ident or 0
    interrupt = threading.Timer(0.2, lambda: signal.pthread_kill(caller, signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        inline.call("wait", encode(60), timeout=30)
    interrupt.join()
    assert not rank_threads()


@pytest.mark.parametrize("ranks", [1, 2])
def test_events_arrive_in_order_on_the_calling_thread(ranks: int) -> None:
    seen: list[tuple[str, Event]] = []
    executor = InlineFactory().create(preload=(), on_event=lambda event: seen.append((threading.current_thread().name, event)))
    executor.start(specs(ranks), timeout=5)
    executor.call("events", b"", timeout=5)
    executor.stop()
    assert {thread for thread, _ in seen} == {"MainThread"}
    for rank in range(ranks):
        kinds = [type(event) for _, event in seen if event.rank == rank]
        assert kinds == [StageStarted, Progress, Progress, StageFinished]


def test_run_once_answers_closes_and_does_not_touch_started_ranks(inline: Executor, close_log: Path) -> None:
    inline.start(specs(2), timeout=5)
    assert values([inline.run_once(specs(1)[0], "thread", b"", timeout=5)]) == ["MainThread"]
    assert close_log.read_text() == "closed 0 on MainThread\n"
    with pytest.raises(WorkerError, match="boom-17"):
        inline.run_once(specs(1)[0], "fail", encode(0), timeout=5)
    assert values(inline.call("echo", encode(1), timeout=5)) == [[0, 1], [1, 1]]


def test_a_forgotten_executor_ends_its_threads() -> None:
    executor = InlineFactory().create(preload=(), on_event=lambda event: None)
    executor.start(specs(2), timeout=5)
    assert len(rank_threads()) == 2
    del executor
    gc.collect()
    assert becomes_true(lambda: not rank_threads(), 2.0)


def test_a_service_that_takes_too_long_to_make_is_named(inline: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_module, "ABORT_SECONDS", 0.1)
    monkeypatch.setattr("engine.executors.toy_services.SLOW_SECONDS", 0.8)
    with pytest.raises(WorkerError, match="no answer to 'start' from rank 0 ") as caught:
        inline.start(specs(2, SLOW), timeout=0.2)
    assert "in slow" in caught.value.report.traceback
    assert becomes_true(lambda: not rank_threads(), 3.0)


def test_two_executors_do_not_share_ranks(inline: Executor) -> None:
    other = InlineFactory().create(preload=(), on_event=lambda event: None)
    inline.start(specs(2), timeout=5)
    other.start(specs(2), timeout=5)
    with pytest.raises(WorkerError):
        other.call("fail", encode(1), timeout=5)
    other.stop()
    assert values(inline.call("echo", encode(1), timeout=5)) == [[0, 1], [1, 1]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_exception_of_the_event_sink_is_the_callers_own(ranks: int) -> None:
    def fail(event: Event) -> None:
        raise ZeroDivisionError("of the sink")

    executor = InlineFactory().create(preload=(), on_event=fail)
    executor.start(specs(ranks), timeout=10)
    with pytest.raises(ZeroDivisionError, match="of the sink"):
        executor.call("events", b"", timeout=10)
    executor.stop()
