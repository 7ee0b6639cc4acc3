"""Waits have limits, and their errors say who is silent and what it is doing."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from engine.executors.process_watch import becomes_true, marked
from engine.executors.toy_services import SLOW, encode, specs
from loadmaster_engine.executors.multiprocess import crew
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory
from loadmaster_hookspecs.errors import ErrorReport, WorkerError
from loadmaster_hookspecs.executors import Executor, HostRecord


def timeout_of(executor: Executor, op: str, body: object, seconds: float) -> ErrorReport:
    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        executor.call(op, encode(body), timeout=seconds)
    assert seconds <= time.monotonic() - began < seconds + 4.0
    assert caught.value.code == "LM-WORKER-TIMEOUT"
    return caught.value.report


def test_the_silent_rank_is_named_with_its_stack(workers: Executor, mark: str) -> None:
    workers.start(specs(3), timeout=20)
    report = timeout_of(workers, "wait_on", 1, 0.3)
    assert report.summary == "no answer to 'wait_on' from rank 1 within 0.3 s"
    assert report.where == {"rank": 1, "stage": "serve", "op": "wait_on"}
    assert "stage serve" in report.why
    assert "in do_wait_on" in report.traceback
    assert "rank 0" not in report.traceback
    assert set(marked(mark).values()) == {"loadmaster-fork"}


def test_several_silent_ranks_are_all_named_also_in_native_code(workers: Executor) -> None:
    workers.start(specs(2), timeout=20)
    report = timeout_of(workers, "busy", None, 0.3)
    assert report.where["rank"] == "0, 1"
    assert report.traceback.count("in do_busy") == 2


def test_a_process_that_cannot_show_its_stack_shows_its_state(workers: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "STACK_SECONDS", 0.3)
    workers.start(specs(1), timeout=20)
    report = timeout_of(workers, "stop_self", None, 0.3)
    assert "stopped by a signal" in report.traceback


def test_a_stopped_process_that_does_not_take_its_call_is_silent_too(
    workers: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "STACK_SECONDS", 0.2)
    workers.start(specs(1), timeout=20)
    with pytest.raises(WorkerError):
        workers.call("stop_self", b"", timeout=0.2)
    workers.stop()
    workers.start(specs(1), timeout=20)
    workers.call("freeze_later", b"", timeout=5)
    time.sleep(0.2)
    report = timeout_of(workers, "echo", "x" * (4 << 20), 0.5)
    assert report.where["op"] == "echo"


def test_a_service_that_takes_too_long_to_make(workers: Executor) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerError, match="no answer to 'start' from rank 0, 1") as caught:
        workers.start(specs(2, SLOW), timeout=1.0)
    assert time.monotonic() - began < 4.0
    assert "in slow" in caught.value.report.traceback


def test_a_slow_import_is_named_as_what_the_ranks_wait_for(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleepy_module.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = MultiprocessFactory().create(preload=["sleepy_module"], on_event=lambda event: None)
    with pytest.raises(WorkerError, match="waits for the fork server to import sleepy_module"):
        executor.start(specs(2), timeout=1.0)
    began = time.monotonic()
    executor.stop()
    assert time.monotonic() - began < 4.0
    assert becomes_true(lambda: not marked(mark), 1.0)


def test_stop_kills_what_does_not_close_in_time(workers: Executor, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    monkeypatch.setattr(crew, "STOP_SECONDS", 0.3)
    workers.start(specs(2, "engine.executors.toy_services:clinging"), timeout=20)
    began = time.monotonic()
    workers.stop()
    assert 0.3 <= time.monotonic() - began < 4.0
    assert not marked(mark)


def test_a_fork_server_that_takes_no_request_is_told_as_such(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleepy_module.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = MultiprocessFactory().create(preload=["sleepy_module"], on_event=lambda event: None)
    (spec,) = specs(1)
    large = msgspec.structs.replace(spec, host=HostRecord(factory="x" * (4 << 20)))
    with pytest.raises(WorkerError, match="the fork server took no request within") as caught:
        executor.start([large], timeout=0.5)
    assert caught.value.code == "LM-WORKER-TIMEOUT"
    executor.stop()
