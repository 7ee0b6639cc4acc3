"""What the memory control group knows about processes that the kernel killed for want of memory."""

from __future__ import annotations

from pathlib import Path


def oom_kills(root: Path = Path("/")) -> int | None:
    """Return how many processes of this process's control group the kernel has killed for memory, None if it cannot be read.

    Knows both versions of control groups. Inside a container the group's own files lie at the top of the mount, so that is
    tried after the path the kernel names. `root` is the file system's root, another one in tests.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, name = ("memory", "memory.oom_control") if controllers else ("", "memory.events")
        for group in (path.lstrip("/"), ""):
            count = _counter(root / "sys/fs/cgroup" / mount / group / name)
            if count is not None:
                return count
    return None


def _counter(file: Path) -> int | None:
    try:
        words = dict(line.split(" ", 1) for line in file.read_text().splitlines())
        return int(words["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None
