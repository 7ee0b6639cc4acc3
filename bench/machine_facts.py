"""The machine and the versions that a benchmark was made with."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from loadmaster.machine import describe_machine

PROCESSOR: Final = r"^model name\s*:\s*(.+)$"


def machine_facts(cache: Path) -> dict[str, str]:
    """Return the machine's description; `cache` tells which file system the models lie on."""
    machine = describe_machine()
    return {
        "processor": f"{_first('/proc/cpuinfo', PROCESSOR)}, {machine.cores} cores in use",
        "memory": f"{(machine.memory_total or 0) / 2**30:.1f} GiB",
        "system": machine.system,
        "virtual machine": "yes" if re.search(r"\bhypervisor\b", _text("/proc/cpuinfo")) else "no",
        "file system": _file_system(cache),
        "huge pages": f"anonymous {machine.huge_pages['anonymous']}, shared {machine.huge_pages['shared']}",
        "load average at the start": f"{os.getloadavg()[0]:.2f}",
        "python": machine.python.split()[0],
        **{
            f"{name} (own)": version
            for name, version in machine.packages.items()
            if name in ("loadmaster", "torch", "transformers")
        },
    }


def _file_system(folder: Path) -> str:
    """Return device and type of the file system that holds `folder`: the longest mount point above it."""
    best, found = "", "unknown"
    for line in _text("/proc/mounts").splitlines():
        device, point, kind, *_ = line.split()
        inside = folder.resolve().is_relative_to(point)
        if inside and len(point) > len(best):
            best, found = point, f"{kind} on {device}"
    return found


def _first(path: str, pattern: str) -> str:
    match = re.search(pattern, _text(path), re.MULTILINE)
    return match[1].strip() if match else "unknown"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
