"""From exit codes, events and control groups to words."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from loadmaster_engine.executors.last_seen import LastSeen
from loadmaster_engine.executors.multiprocess.cgroup import oom_kills
from loadmaster_engine.executors.multiprocess.diagnosis import WorkerEnd, end_text, server_death, worker_death
from loadmaster_hookspecs.events import Event, Notice, Progress, StageFinished, StageStarted

VERSION_2 = "0::/user.slice/job\n"
VERSION_1 = "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        (VERSION_2, {"sys/fs/cgroup/user.slice/job/memory.events": "low 0\noom 3\noom_kill 2\n"}, 2),
        (VERSION_2, {"sys/fs/cgroup/memory.events": "oom_kill 5\n"}, 5),
        (VERSION_1, {"sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"}, 7),
        (VERSION_1, {"sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}, 1),
        (VERSION_1, {"sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\n"}, None),
        (VERSION_2, {"sys/fs/cgroup/user.slice/job/memory.events": "what is this"}, None),
        (VERSION_2, {}, None),
        (None, {}, None),
    ],
)
def test_memory_kills_are_counted_in_both_kinds_of_control_groups(
    tmp_path: Path, groups: str | None, files: dict[str, str], count: int | None
) -> None:
    contents = dict(files) if groups is None else {"proc/self/cgroup": groups, **files}
    for name, text in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(tmp_path) == count


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-9, "was killed by SIGKILL"),
        (-signal.SIGRTMIN - 3, f"was killed by signal {signal.SIGRTMIN + 3}"),
        (None, "closed its channel without exiting"),
    ],
)
def test_the_way_a_process_ended_is_said_in_words(code: int | None, text: str) -> None:
    assert end_text(code) == text


def test_a_memory_kill_that_the_kernel_counted_is_said_to_be_one() -> None:
    end = WorkerEnd(rank=1, pid=7, code=-9, seen=LastSeen("load", 10, 20), oom_kills=1)
    report = worker_death(end).report
    assert "in stage load, 10 of 20 bytes done; the kernel killed 1 process(es)" in report.why
    uncounted = worker_death(WorkerEnd(rank=1, pid=7, code=-9, seen=LastSeen("load"), oom_kills=0)).report
    assert uncounted.why == "process 7 was killed by SIGKILL in stage load"


def test_the_death_of_the_fork_server_names_the_import_it_was_at() -> None:
    assert "while it imported torch" in server_death(5, -11, "torch").report.why
    assert server_death(5, -9, "").report.why == "process 5 was killed by SIGKILL"


def test_what_a_rank_was_last_seen_doing_follows_its_events() -> None:
    history: list[tuple[Event, str]] = [
        (Notice(rank=0, text="hello"), "stage spawn"),
        (StageStarted(rank=0, stage="load"), "stage load"),
        (Progress(rank=0, stage="load", done=3, total=9), "stage load, 3 of 9 bytes done"),
        (StageFinished(rank=0, stage="load", seconds=1.0), "stage load, 3 of 9 bytes done"),
        (StageStarted(rank=0, stage="bind"), "stage bind"),
    ]
    seen = LastSeen()
    for event, text in history:
        seen = seen.after(event)
        assert str(seen) == text
