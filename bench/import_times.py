"""What a loadmaster worker imports, and how long each part takes, from `python -X importtime`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.environments import ROOT

TIMEOUT_S: Final = 300.0
_LINE: Final = re.compile(r"^import time:\s+(\d+) \|\s+(\d+) \| (\s*)(\S+)$")


def worker_imports(model: Path, top: int = 15) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Return the seconds of all imports before a worker of `model` is forked, and the `top` packages by their own time.

    Time is counted where it is spent: a package's own modules, without what they import from elsewhere. The collector is off,
    as it is in the fork server.
    """
    from loadmaster.host import PluginHost
    from loadmaster.preloading import early_modules

    host = PluginHost()
    modules = early_modules(host, host.record(), model)
    code = "; ".join(["import gc; gc.disable()", *(f"import {module}" for module in modules)])
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return summed(done.stderr, top)


def summed(text: str, top: int) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Return the total seconds in the output of `-X importtime` and the `top` packages (two levels deep) by own time."""
    total = 0.0
    packages: dict[str, float] = {}
    for line in text.splitlines():
        if found := _LINE.match(line):
            package = ".".join(found[4].split(".")[:2])
            spent = int(found[1]) / 1e6
            packages[package] = packages.get(package, 0.0) + spent
            total += spent
    ranked = sorted(packages.items(), key=lambda item: -item[1])
    return total, tuple(ranked[:top])
