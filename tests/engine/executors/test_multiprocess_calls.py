"""What a caller gets from workers that do as they should, and from services that raise."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from engine.executors.process_watch import becomes_true, children, marked, open_files
from engine.executors.toy_services import BROKEN, encode, pattern, specs
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError, UsageError, WorkerError
from loadmaster_hookspecs.events import Event, Failed, Progress, StageFinished, StageStarted
from loadmaster_hookspecs.executors import Executor, Result


def values(results: list[Result]) -> list[object]:
    return [msgspec.msgpack.decode(result.body) for result in results]


def test_answers_come_in_rank_order_and_calls_in_order(workers: Executor) -> None:
    workers.start(specs(3), timeout=20)
    for turn in range(20):
        assert values(workers.call("echo", encode(turn), timeout=5)) == [[0, turn], [1, turn], [2, turn]]


def test_each_rank_can_get_a_body_of_its_own(workers: Executor) -> None:
    workers.start(specs(2), timeout=20)
    assert values(workers.call("echo", [encode("a"), encode("b")], timeout=5)) == [[0, "a"], [1, "b"]]
    with pytest.raises(UsageError) as caught:
        workers.call("echo", [b""], timeout=5)
    assert caught.value.code == "LM-CALL-BODIES"
    assert values(workers.call("echo", encode(1), timeout=5)) == [[0, 1], [1, 1]], "a wrong call must not end the ranks"


def test_every_rank_is_a_process_of_its_own(workers: Executor, mark: str) -> None:
    workers.start(specs(2), timeout=20)
    pids = values(workers.call("pid", b"", timeout=5))
    names = marked(mark)
    assert sorted(names.values()) == ["loadmaster-fork", "loadmaster-r0", "loadmaster-r1"]
    assert [names[pid] for pid in pids if isinstance(pid, int)] == ["loadmaster-r0", "loadmaster-r1"]


def test_an_exception_carries_its_text_traceback_rank_and_stage_and_comes_soon(workers: Executor, events: list[Event]) -> None:
    workers.start(specs(2), timeout=20)
    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        workers.call("fail", encode(1), timeout=30)
    assert time.monotonic() - began < 5.0
    report = caught.value.report
    assert report.code == "LM-WORKER-FAILED"
    assert report.summary == "a rank failed with ValueError: boom-17"
    assert report.where == {"rank": 1, "stage": "load"}
    assert 'raise ValueError("boom-17' in report.traceback
    assert "and a second line" in report.traceback
    assert "boom-17" in str(caught.value)
    assert events[-1] == Failed(rank=1, stage="load", code="LM-WORKER-FAILED", summary=report.summary)


def test_an_error_on_purpose_arrives_as_it_was_raised(workers: Executor) -> None:
    workers.start(specs(2), timeout=20)
    with pytest.raises(IntegrityError) as caught:
        workers.call("refuse", encode(1), timeout=5)
    assert caught.value.code == "LM-TOY"
    assert caught.value.report.where == {"rank": 1, "stage": "spawn", "file": "toy.bin", "offset": 7}
    assert caught.value.hints == ("buy another",)
    assert caught.value.report.traceback == ""


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 2, 0]])
def test_the_error_that_came_first_in_time_wins(workers: Executor, order: list[int]) -> None:
    workers.start(specs(3), timeout=20)
    with pytest.raises(WorkerError, match=f"ValueError: rank {order[0]}"):
        workers.call("fail_late", encode([order, time.monotonic() + 0.2]), timeout=5)


def test_after_an_error_all_workers_are_gone_and_calls_are_refused_with_its_summary(workers: Executor, mark: str) -> None:
    workers.start(specs(3), timeout=20)
    with pytest.raises(WorkerError):
        workers.call("refuse_nothing_known_by_this_name", b"", timeout=5)
    assert set(marked(mark).values()) == {"loadmaster-fork"}
    with pytest.raises(WorkerError, match="no attribute 'do_refuse_nothing_known_by_this_name'") as caught:
        workers.call("echo", b"", timeout=5)
    assert caught.value.code == "LM-EXECUTOR-ENDED"
    workers.stop()
    workers.start(specs(1), timeout=20)
    assert values(workers.call("echo", encode(1), timeout=5)) == [[0, 1]]


def test_an_exception_while_the_service_is_made(workers: Executor) -> None:
    with pytest.raises(WorkerError, match="RuntimeError: no service today") as caught:
        workers.start(specs(3, BROKEN), timeout=20)
    assert caught.value.report.where == {"rank": 2, "stage": "spawn"}


@pytest.mark.parametrize("service", ["engine.executors.toy_services:missing", "no_such_module:make"])
def test_a_service_that_cannot_be_imported(workers: Executor, service: str) -> None:
    with pytest.raises(WorkerError, match=r"missing|no_such_module"):
        workers.start(specs(1, service), timeout=20)


@pytest.mark.parametrize(("op", "body", "words"), [("quit", 4, "SystemExit: 4"), ("undecodable", None, r"file \\udcff")])
def test_unusual_exceptions_arrive_too(workers: Executor, op: str, body: object, words: str) -> None:
    workers.start(specs(1), timeout=20)
    with pytest.raises(WorkerError, match=words):
        workers.call(op, encode(body), timeout=5)


def test_bulk_results_arrive_whole_and_are_released_with_their_last_view(workers: Executor) -> None:
    nbytes = 64 << 20
    workers.start(specs(2), timeout=20)
    before = len(open_files(os.getpid()))
    results = workers.call("bulk", encode(nbytes), timeout=30)
    for rank, result in enumerate(results):
        assert isinstance(result.bulk, memoryview)
        assert result.bulk.readonly
        assert result.bulk == pattern(rank, nbytes)
        assert msgspec.msgpack.decode(result.body) == rank
    del results, result
    assert len(open_files(os.getpid())) == before
    (empty, _) = workers.call("bulk", encode(0), timeout=5)
    assert empty.bulk == b""


def test_a_body_beyond_the_frame_limit_is_an_error_that_names_the_way_out(workers: Executor) -> None:
    workers.start(specs(1), timeout=20)
    with pytest.raises(WorkerError, match="bulk part of a Result") as caught:
        workers.call("huge_body", encode((256 << 20) + 1), timeout=30)
    assert caught.value.code == "LM-CHANNEL-SIZE"


def test_a_large_body_reaches_the_worker(workers: Executor) -> None:
    workers.start(specs(1), timeout=20)
    text = "x" * (8 << 20)
    assert values(workers.call("echo", encode(text), timeout=20)) == [[0, text]]


def test_events_arrive_in_order_before_the_answer(workers: Executor, events: list[Event]) -> None:
    workers.start(specs(2), timeout=20)
    workers.call("events", b"", timeout=5)
    for rank in range(2):
        assert [event for event in events if event.rank == rank] == [
            StageStarted(rank=rank, stage="load"),
            Progress(rank=rank, stage="load", done=1, total=2),
            Progress(rank=rank, stage="load", done=2, total=2),
            StageFinished(rank=rank, stage="load", seconds=0.5, nbytes=2),
        ]


def test_answers_to_earlier_requests_are_dropped_with_their_memory(workers: Executor) -> None:
    workers.start(specs(2), timeout=20)
    before = len(open_files(os.getpid()))
    assert values(workers.call("stale", b"", timeout=5)) == ["fresh", "fresh"]
    assert values(workers.call("echo", encode(1), timeout=5)) == [[0, 1], [1, 1]]
    assert len(open_files(os.getpid())) == before


@pytest.mark.parametrize("data", [b"\xff" * 64, b"\x03\x00\x00\x00\x00abc", b"\x00\x00\x00\x00\x02"])
def test_garbage_on_a_channel_ends_the_ranks_with_a_clear_error(workers: Executor, data: bytes) -> None:
    workers.start(specs(1), timeout=20)
    with pytest.raises(WorkerError) as caught:
        workers.call("garbage", encode(data), timeout=5)
    assert caught.value.code == "LM-CHANNEL-PROTOCOL"
    assert caught.value.report.where["rank"] == 0


def test_run_once_answers_and_leaves_no_worker(workers: Executor, mark: str, close_log: Path) -> None:
    assert values([workers.run_once(specs(1)[0], "echo", encode("plan"), timeout=20)]) == [[0, "plan"]]
    assert set(marked(mark).values()) == {"loadmaster-fork"}
    assert close_log.read_text() == "closed 0 on MainThread\n"


def test_run_once_and_its_errors_leave_started_ranks_alone(workers: Executor) -> None:
    workers.start(specs(2), timeout=20)
    with pytest.raises(WorkerError, match="boom-17"):
        workers.run_once(specs(1)[0], "fail", encode(0), timeout=5)
    assert values(workers.call("echo", encode(1), timeout=5)) == [[0, 1], [1, 1]]


def test_workers_hold_nothing_but_their_own_channel(workers: Executor) -> None:
    workers.start(specs(3), timeout=20)
    inherited = os.open("/dev/null", os.O_RDONLY)
    sockets = set()
    for links in values(workers.call("descriptors", b"", timeout=5)):
        assert isinstance(links, dict)
        assert links.pop(0) == "/dev/null"
        assert links.pop(1) == links.pop(2)
        kinds = sorted(target.split(":")[0] for target in links.values())
        assert kinds == ["/memfd", "socket"]
        sockets.add(next(target for target in links.values() if target.startswith("socket")))
    os.close(inherited)
    assert len(sockets) == 3


def test_workers_ignore_interrupts_and_have_no_signal_blocked(workers: Executor) -> None:
    workers.start(specs(1), timeout=20)
    (state,) = values(workers.call("signals", b"", timeout=5))
    assert isinstance(state, dict)
    assert state["SigIgn"] & 1 << 1, "SIGINT is bit 1"
    assert state["SigBlk"] == 0
    assert not state["SigCgt"] & 1 << 14, "SIGTERM, bit 14, has its default"


def test_stop_lets_services_close_and_can_be_repeated(workers: Executor, close_log: Path) -> None:
    workers.start(specs(2), timeout=20)
    workers.stop()
    workers.stop()
    assert sorted(close_log.read_text().splitlines()) == ["closed 0 on MainThread", "closed 1 on MainThread"]
    with pytest.raises(UsageError) as caught:
        workers.call("echo", b"", timeout=5)
    assert caught.value.code == "LM-EXECUTOR-NOT-STARTED"


def test_a_second_start_and_an_empty_one_are_refused(workers: Executor) -> None:
    with pytest.raises(UsageError, match="no rank to start"):
        workers.start([], timeout=5)
    workers.start(specs(1), timeout=20)
    with pytest.raises(UsageError) as caught:
        workers.start(specs(1), timeout=20)
    assert caught.value.code == "LM-EXECUTOR-STARTED"


def test_two_executors_do_not_know_each_other(workers: Executor, mark: str) -> None:
    other = MultiprocessFactory().create(preload=(), on_event=lambda event: None)
    workers.start(specs(2), timeout=20)
    other.start(specs(2), timeout=20)
    with pytest.raises(WorkerError, match="boom-17"):
        other.call("fail", encode(0), timeout=5)
    other.stop()
    assert values(workers.call("echo", encode(1), timeout=5)) == [[0, 1], [1, 1]]


def test_a_forgotten_executor_ends_its_processes(mark: str) -> None:
    executor = MultiprocessFactory().create(preload=(), on_event=lambda event: None)
    executor.start(specs(2), timeout=20)
    assert len(marked(mark)) == 3
    del executor
    assert becomes_true(lambda: not marked(mark), 3.0), "killed processes are not gone"
    assert "Z" not in children(os.getpid()).values()


def test_preloaded_modules_are_imported_once_for_all_workers(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "imports.txt"
    (tmp_path / "noted_module.py").write_text(f"open({str(log)!r}, 'a').write('imported\\n')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = MultiprocessFactory().create(preload=["noted_module"], on_event=lambda event: None)
    assert not marked(mark), "creating an executor starts nothing"
    executor.start(specs(2), timeout=20)
    executor.stop()
    assert log.read_text() == "imported\n"
    assert "noted_module" not in sys.modules


@pytest.mark.parametrize("text", ["raise OSError('bad weather')", "import sys; sys.exit(1)", "import nowhere_to_be_found"])
def test_a_preloaded_module_that_fails_is_named(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "sick_module.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = MultiprocessFactory().create(preload=["json", "sick_module"], on_event=lambda event: None)
    with pytest.raises(WorkerError) as caught:
        executor.start(specs(1), timeout=20)
    assert caught.value.report.where["preload"] == "sick_module"
    assert "sick_module.py" in caught.value.report.traceback
    executor.stop()


def test_what_workers_print_goes_to_stderr(mark: str) -> None:
    code = (
        "from engine.executors.toy_services import specs\n"
        "from loadmaster_engine.executors.plugin import loadmaster_executors\n"
        "executor = loadmaster_executors()[1].create(preload=(), on_event=print)\n"
        "executor.start(specs(1), timeout=20); executor.call('print', b'', timeout=5); executor.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": ""},
        check=True,
    )
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["from python", "from native code"]


def test_an_event_sink_that_raises_ends_the_call_and_the_ranks(mark: str) -> None:
    def sink(event: Event) -> None:
        raise LookupError("the observer broke")

    executor = MultiprocessFactory().create(preload=(), on_event=sink)
    executor.start(specs(2), timeout=20)
    with pytest.raises(LookupError, match="observer"):
        executor.call("events", b"", timeout=5)
    assert set(marked(mark).values()) == {"loadmaster-fork"}
    with pytest.raises(LoadmasterError, match="LookupError"):
        executor.call("echo", b"", timeout=5)
    executor.stop()


def test_a_fork_server_that_cannot_be_launched_is_an_error_and_leaves_nothing(
    workers: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerError, match="/nowhere/python") as caught:
        workers.start(specs(1), timeout=5)
    assert caught.value.code == "LM-FORKSERVER-LAUNCH"


def test_a_worker_that_cannot_be_forked_is_an_error(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forkless_module.py").write_text(
        "import os\ndef refuse(): raise BlockingIOError(11, 'Resource temporarily unavailable')\nos.fork = refuse\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    executor = MultiprocessFactory().create(preload=["forkless_module"], on_event=lambda event: None)
    with pytest.raises(WorkerError, match="temporarily unavailable") as caught:
        executor.start(specs(2), timeout=20)
    assert caught.value.code == "LM-WORKER-FORK"
    executor.stop()


def test_the_number_of_threads_reaches_libraries_that_are_imported_later(workers: Executor) -> None:
    workers.start([msgspec.structs.replace(spec, threads=3) for spec in specs(1)], timeout=20)
    assert values(workers.call("environment", encode(["OMP_NUM_THREADS"]), timeout=5)) == [{"OMP_NUM_THREADS": "3"}]
