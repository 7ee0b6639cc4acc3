"""Freed blocks are returned to the operating system. In a process of its own, whose heap nobody else uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loadmaster_engine.load import heap

FREE_AND_TRIM = """
import numpy as np
from pathlib import Path
from loadmaster_engine.load.heap import trim_heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

np.ones(30 << 20, np.uint8)  # once freed, blocks below its size come from the heap
blocks = [np.ones(1 << 20, np.uint8) for _ in range(24)]
top = np.ones(1 << 20, np.uint8)
del blocks
before = resident()
trim_heap()
print(before - resident())
"""


@pytest.mark.skipif(heap._trim is None, reason="the C library is not glibc")
def test_freed_blocks_are_returned() -> None:
    done = subprocess.run([sys.executable, "-c", FREE_AND_TRIM], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 20 << 20
