"""What the operating system says about this process: bytes it read, and memory it took."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ProcessIo(NamedTuple):
    """Bytes since the process started: `called` through read system calls, `stored` fetched from storage for it."""

    called: int
    stored: int


def process_io() -> ProcessIo:
    """Return this process's input counters, from /proc/self/io; zeros where the system does not give them."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return ProcessIo(0, 0)
    values = {name: int(value) for name, _, value in (line.partition(":") for line in lines)}
    return ProcessIo(values.get("rchar", 0), values.get("read_bytes", 0))


def peak_rss() -> int:
    """Return the peak resident memory of this process in bytes, shared file pages included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
