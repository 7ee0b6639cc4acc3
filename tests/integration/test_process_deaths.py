"""Workers and hosts that die while a model is loaded or served: the reason arrives in time and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import loadmaster as lm
from engine.executors.process_watch import becomes_true, marked
from loadmaster_hookspecs.events import Event, StageStarted

PLUGINS = ["integration.awkward_format", "bigram_family"]
REASON_WITHIN = 5.0
"""Seconds until the caller must have the reason."""


def worker(mark: str, rank: int) -> int:
    """Return the pid of a rank's process."""
    return next(pid for pid, name in marked(mark).items() if name.endswith(f"r{rank}"))


@pytest.mark.parametrize(("stage", "rank"), [("rendezvous", 1), ("reserve", 0), ("load", 0), ("load", 1), ("bind", 1)])
def test_a_worker_killed_in_a_stage_is_named(
    mark: str, table: Path, monkeypatch: pytest.MonkeyPatch, stage: str, rank: int
) -> None:
    monkeypatch.setenv("AWKWARD", "0.5")
    killed = 0.0

    def kill(event: Event) -> None:
        nonlocal killed
        if isinstance(event, StageStarted) and (event.stage, event.rank) == (stage, rank) and not killed:
            killed = time.monotonic()
            os.kill(worker(mark, rank), signal.SIGKILL)

    with pytest.raises(lm.WorkerError) as caught:
        lm.Engine(table, tensor_parallel=2, executor="multiprocess", on_event=kill, plugins=PLUGINS)
    assert time.monotonic() - killed < REASON_WITHIN
    assert caught.value.code == "LM-WORKER-DIED"
    assert caught.value.report.where["rank"] == rank
    assert "SIGKILL" in str(caught.value)


def test_a_worker_killed_while_serving_is_named(mark: str, folder: Path) -> None:
    with lm.Engine(folder, tensor_parallel=2, executor="multiprocess") as engine:
        timer = threading.Timer(0.3, lambda: os.kill(worker(mark, 1), signal.SIGKILL))
        timer.start()
        with pytest.raises(lm.WorkerError) as caught:
            _run_until_it_fails(engine)
        timer.join()
        assert caught.value.report.where["rank"] == 1
        with pytest.raises(lm.WorkerError):
            engine.logits([1])


def _run_until_it_fails(engine: lm.Engine) -> None:
    end = time.monotonic() + REASON_WITHIN
    while time.monotonic() < end:
        engine.logits([1, 2, 3])


def test_what_a_rank_raises_reaches_the_caller(mark: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWKWARD", "boom")
    with pytest.raises(lm.LoadmasterError) as caught:
        lm.Engine(table, tensor_parallel=2, executor="multiprocess", plugins=PLUGINS)
    text = str(caught.value)
    assert "boom-17" in text
    assert caught.value.report.where["rank"] == 1
    assert caught.value.report.where["stage"] == "load"
    assert "awkward_format.py" in caught.value.report.traceback
    assert caught.value.report.exit_code != 0


@pytest.mark.parametrize("stage", ["plan", "spawn", "load", "serve"])
def test_nothing_outlives_a_host_that_is_killed(mark: str, table: Path, stage: str) -> None:
    script = Path(__file__).with_name("doomed_engine.py")
    environ = {**os.environ, "AWKWARD": "0.5", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(script), str(table)], stdout=subprocess.PIPE, text=True, env=environ) as host:
        assert host.stdout is not None
        assert any(line.startswith(f"{stage} ") for line in host.stdout), "the host ended before it came to the stage"
        below = {pid for pid in marked(mark) if pid != host.pid}
        host.kill()
        host.wait(5)
        assert becomes_true(lambda: not below & marked(mark).keys(), REASON_WITHIN), f"left behind: {marked(mark)}"
