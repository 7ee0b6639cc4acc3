"""The pages of an arena: which size pays on this machine, and having them ready before bytes are copied into them.

Anonymous memory is handed out page by page on first touch. Huge pages are several times faster to get where memory is at
hand, and slower where a virtual machine has given it back to its host, since those must be fetched whole; so a probe decides.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from threading import Thread
from typing import Final

import numpy as np

PROBE_BYTES: Final = 4 << 20
"""Bytes of each kind of page that are touched to compare them."""

WORTHWHILE: Final = 64 << 20
"""Bytes of an arena from which on its pages are worth a probe and a thread."""

POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE of Linux 5.14: make pages present as if they had been written. Older kernels refuse it."""

STEP: Final = 32 << 20
"""Bytes that are made present by one call, so that a thread that is no longer wanted ends soon."""

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def anonymous(nbytes: int) -> mmap.mmap:
    """Return private memory of the process, without pages yet, on huge pages where a probe says that they pay."""
    memory = _memory(nbytes)
    if nbytes >= WORTHWHILE and _huge_pages_pay():
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Prefault:
    """A thread that makes the pages of `memory` present, front to back, while other work runs. Ends by itself.

    What is copied in meanwhile is kept: pages that exist are left alone. The memory lives until the thread has ended.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._wanted = True
        if len(memory) >= WORTHWHILE:  # not kept: memory goes with its last user
            Thread(target=self._run, name="loadmaster-prefault", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end after its current step. Safe to call twice."""
        self._wanted = False

    def _run(self) -> None:
        address = _address(self._memory)
        for start in range(0, len(self._memory), STEP):
            # ctypes lets other threads run meanwhile; mmap's own madvise would not.
            if not self._wanted or _madvise(address + start, min(STEP, len(self._memory) - start), POPULATE_WRITE):
                return


def _memory(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _address(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)


def _huge_pages_pay() -> bool:
    """Return whether a few huge pages are ready sooner than as many bytes of small ones."""
    return _touch(mmap.MADV_HUGEPAGE) < _touch(mmap.MADV_NOHUGEPAGE)


def _touch(advice: int) -> float:
    """Return the seconds that first touching memory under `advice` takes."""
    memory = _memory(PROBE_BYTES + (2 << 20))  # room for whole huge pages, wherever it begins
    try:
        memory.madvise(advice)
    except OSError:
        return float("inf") if advice == mmap.MADV_HUGEPAGE else 0.0  # a kernel without huge pages
    pages = np.frombuffer(memory, dtype=np.uint8)[:: mmap.PAGESIZE]
    start = time.perf_counter()
    pages[:] = 1
    return time.perf_counter() - start
