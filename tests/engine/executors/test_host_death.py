"""When the host dies, by any means and at any moment, everything below it is gone at once."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.executors.process_watch import becomes_true, marked

HOST = Path(__file__).with_name("doomed_host.py")
GONE = 5.0
"""Seconds until no process may be left; milliseconds are usual."""


def start_host(state: str, tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "sleepy_module.py").write_text("sum(range(1 << 60))  # an import stuck in native code")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    return subprocess.Popen([sys.executable, str(HOST), state], stdout=subprocess.PIPE, text=True, env=environ)


def await_state(host: subprocess.Popen[str]) -> None:
    assert host.stdout is not None
    assert select.select([host.stdout], [], [], 20.0)[0], "the host does not get into its state"
    assert host.stdout.readline() == "here\n"


@pytest.mark.parametrize(
    ("number", "state", "processes"),
    [
        (signal.SIGKILL, "importing", 1),
        (signal.SIGKILL, "starting", 3),
        (signal.SIGKILL, "idle", 3),
        (signal.SIGKILL, "busy", 3),
        (signal.SIGKILL, "planning", 2),
        (signal.SIGKILL, "forked", 3),
        (signal.SIGTERM, "busy", 3),
        (signal.SIGINT, "importing", 1),
        (signal.SIGINT, "busy", 3),
    ],
)
def test_nothing_outlives_the_host(mark: str, tmp_path: Path, number: int, state: str, processes: int) -> None:
    with start_host(state, tmp_path) as host:
        await_state(host)
        below = {pid: name for pid, name in marked(mark).items() if pid != host.pid and name.startswith("loadmaster")}
        assert len(below) == processes
        host.send_signal(number)
        assert becomes_true(lambda: not below.keys() & marked(mark).keys(), GONE), f"left behind: {marked(mark)}"
        host.wait(5)
        for pid in marked(mark):  # the child that the host forked itself
            os.kill(pid, signal.SIGKILL)


def test_workers_outlive_the_thread_that_started_them(mark: str, tmp_path: Path) -> None:
    with start_host("thread", tmp_path) as host:
        output, _ = host.communicate(timeout=30)
    assert output == "2\n"
    assert host.returncode == 0, "an exit without stop is clean"
    assert becomes_true(lambda: not marked(mark), GONE)
