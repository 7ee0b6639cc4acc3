"""What a process and all its descendants take of the machine's memory, with pages that they share counted once."""

from __future__ import annotations

import os
from pathlib import Path

PARTS = ("Pss_Anon", "Pss_Shmem")
"""Anonymous and shared memory; files in the page cache are not charged, because the kernel can give them up."""


def tree_memory(pid: int | None = None) -> int:
    """Return the bytes of process `pid`, by default this one, and of all below it."""
    root = os.getpid() if pid is None else pid
    parents = {int(entry.name): _parent(entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    tree = {root}
    while grown := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= grown
    return sum(_bytes(Path(f"/proc/{number}/smaps_rollup")) for number in tree)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended
        return 0


def _bytes(file: Path) -> int:
    try:
        rows = (line.split() for line in file.read_text().splitlines())
        return sum(int(row[1]) * 1024 for row in rows if row[0].rstrip(":") in PARTS)
    except OSError:  # it has ended
        return 0
