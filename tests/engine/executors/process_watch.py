"""Finds the processes of a test by a mark in their environment, and looks into them through /proc."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = "LOADMASTER_TEST_MARK"


def marked(mark: str) -> dict[int, str]:
    """Names of all living processes by pid whose environment at their start carried the mark. Zombies have none."""
    found = {}
    for process in _processes():
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "comm").read_text().strip()
        except OSError:
            pass  # it ended meanwhile
    return found


def children(parent: int) -> dict[int, str]:
    """States (`Z` for a zombie) of a process's children by pid."""
    found = {}
    for process in _processes():
        try:
            state, ppid = (process / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(ppid) == parent:
            found[int(process.name)] = state
    return found


def open_files(pid: int) -> dict[int, str]:
    """What the descriptors of a process refer to."""
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found[int(link.name)] = os.readlink(link)
    return found


def becomes_true(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition holds within the time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def _processes() -> Iterator[Path]:
    return (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
