"""Versions and limits that a bug report needs. Gathered from metadata and `/proc`, without importing torch."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from loadmaster.control_groups import OWN, ROOT, memory_limits

PACKAGES: Final = (
    "loadmaster",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pluggy",
    "msgspec",
    "click",
    "rich",
    "jinja2",
)
"""Distributions whose versions matter for a load."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What loadmaster runs on. Memory is bytes; None where the system does not say, or sets no limit.

    `cores` are the ones this process may use. `huge_pages` are the states of transparent huge pages for anonymous and for
    shared memory. `accelerator` is what the driver says about itself, or empty.
    """

    python: str
    system: str
    packages: dict[str, str]
    cores: int
    memory_total: int | None
    memory_available: int | None
    memory_limit: int | None
    shared_memory_free: int | None
    huge_pages: dict[str, str]
    accelerator: str
    variables: dict[str, str]


def describe_machine() -> Machine:
    """Return the facts about this process's machine. Never raises for a file that the system does not have."""
    memory = _meminfo(_text("/proc/meminfo"))
    return Machine(
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{platform.system()} {platform.release()} {platform.machine()}, glibc {platform.libc_ver()[1] or 'unknown'}",
        packages=_versions(),
        cores=len(os.sched_getaffinity(0)),
        memory_total=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
        memory_limit=memory_limit(),
        shared_memory_free=_free("/dev/shm"),
        huge_pages={
            "anonymous": chosen(_text("/sys/kernel/mm/transparent_hugepage/enabled")),
            "shared": chosen(_text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        },
        accelerator=_text("/proc/driver/nvidia/version").partition("\n")[0],
        variables=loadmaster_variables(os.environ),
    )


def loadmaster_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names begin with `LOADMASTER_`, sorted by name; a key shows only that it is set."""
    names = (name for name in sorted(environ) if name.startswith("LOADMASTER_"))
    return {name: "(set)" if name.endswith("_KEY") else environ[name] for name in names}


def memory_limit(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Return the lowest memory limit in bytes that control groups set for this process, or None."""
    return min((limit.nbytes for limit in memory_limits(root, own)), default=None)


def processor(proc: Path = Path("/proc/cpuinfo")) -> str:
    """Return the first processor's name and model numbers, or its kind where the system says no more."""
    told = dict(re.findall(r"^([\w ]+?)\s*: (.+)$", _text(proc).partition("\n\n")[0], re.MULTILINE))
    fields = ("model name", "cpu family", "model", "CPU implementer", "CPU part")
    return ", ".join(told[name] if name == "model name" else f"{name} {told[name]}" for name in fields if name in told) or (
        platform.machine()
    )


def accelerators(root: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """Return the names of the accelerators that the driver knows, sorted."""
    texts = map(_text, root.glob("*/information"))
    return tuple(sorted(name.strip() for text in texts for name in re.findall(r"^Model:(.+)$", text, re.MULTILINE)))


def chosen(setting: str) -> str:
    """Return the chosen one of `always [madvise] never`, or `unknown`."""
    match = re.search(r"\[(\w+)\]", setting)
    return match[1] if match else "unknown"


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _meminfo(text: str) -> dict[str, int]:
    """Return the lines `Name:  123 kB` as bytes."""
    return {name: int(kilobytes) * 1024 for name, kilobytes in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _free(folder: str) -> int | None:
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _text(path: str | Path) -> str:
    """Return the content of a file of the system, or nothing where it does not exist or may not be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
