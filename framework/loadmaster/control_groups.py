"""Memory limits of this process's control group and of all groups around it, as version 1 and version 2 say them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")

UNLIMITED: Final = 1 << 60
"""Version 1 says "no limit" with a number close to 2**63."""

_RECLAIMABLE: Final = ("inactive_file", "active_file")
"""Page cache in `memory.stat`: it counts as used by the group, but the kernel gives it up when memory is needed."""


class Files(NamedTuple):
    """Where one version of control groups keeps what it knows; `statistic` is put before names that include groups inside."""

    mount: str
    limit: str
    usage: str
    statistic: str


VERSIONS: Final = (
    Files("", "memory.max", "memory.current", ""),
    Files("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


class Limit(NamedTuple):
    """A group's limit in bytes, and what its processes use of it and could not give back."""

    nbytes: int
    used: int


def memory_limits(root: Path = ROOT, own: Path = OWN) -> list[Limit]:
    """Return the limits that hold for this process: of its own group and of every group around it.

    In a container the own group lies at the top of `root`; elsewhere at the path that `own`, the kernel's word, gives.
    """
    return [limit for files in VERSIONS for folder in _folders(root, own, files) if (limit := _limit(folder, files))]


def _folders(root: Path, own: Path, files: Files) -> Iterator[Path]:
    inner = PurePosixPath(_path(own, files).lstrip("/"))
    for part in (inner, *inner.parents):
        yield root / files.mount / part


def _path(own: Path, files: Files) -> str:
    """Return the path of this process's group below the mount."""
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if files.mount in controllers.split(","):
            return path
    return ""


def _limit(folder: Path, files: Files) -> Limit | None:
    limit = _text(folder / files.limit).strip()
    if not limit.isdecimal() or int(limit) >= UNLIMITED:
        return None
    usage = _text(folder / files.usage).strip()
    rows = (line.split() for line in _text(folder / "memory.stat").splitlines())
    stat = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
    cache = sum(stat.get(files.statistic + name, stat.get(name, 0)) for name in _RECLAIMABLE)
    return Limit(int(limit), (int(usage) if usage.isdecimal() else 0) - cache)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
