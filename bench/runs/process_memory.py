"""Memory of a process and all its descendants, from `/proc`."""

from __future__ import annotations

import os
from pathlib import Path


def tree_memory(root: int) -> dict[str, int]:
    """Return bytes over a process and its descendants.

    `pss` counts a shared page once over all who share it, `pss_anon`, `pss_file` and `pss_shmem` are its parts; `huge` are
    anonymous huge pages; `peak_rss` is the largest peak of one process, file pages included; `processes` their number.
    """
    found = {"pss": 0, "pss_anon": 0, "pss_file": 0, "pss_shmem": 0, "huge": 0, "peak_rss": 0, "processes": 0}
    for pid in descendants(root):
        shares = _fields(f"/proc/{pid}/smaps_rollup")
        found["pss"] += shares.get("Pss", 0)
        found["pss_anon"] += shares.get("Pss_Anon", 0)
        found["pss_file"] += shares.get("Pss_File", 0)
        found["pss_shmem"] += shares.get("Pss_Shmem", 0)
        found["huge"] += shares.get("AnonHugePages", 0)
        found["peak_rss"] = max(found["peak_rss"], _fields(f"/proc/{pid}/status").get("VmHWM", 0))
        found["processes"] += 1
    return found


def own_memory() -> dict[str, int]:
    """Return `tree_memory` of this process."""
    return tree_memory(os.getpid())


def descendants(root: int) -> list[int]:
    """Return `root` and every process below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _parent(entry: Path) -> int | None:
    try:
        # The name in parentheses may hold blanks; the parent is the second field after it.
        return int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return None


def _fields(path: str) -> dict[str, int]:
    """Return the lines `Name:  123 kB` as bytes; nothing for a process that is gone."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[name] = int(value.split()[0]) * 1024
    return found
