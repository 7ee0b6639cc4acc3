"""Asking the kernel to read parts of a mapped file before they are used, so that using them rarely waits for the disk."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def will_need(mapping: memoryview, start: int, stop: int) -> None:
    """Have bytes `[start, stop)` of a file's mapping brought into the page cache, without waiting for them.

    Only advice: what the kernel does not follow is read when it is used. Memory that begins inside a page is no mapping of a
    file and is left alone.
    """
    address = np.frombuffer(mapping, dtype=np.uint8).ctypes.data if len(mapping) else 0
    stop = min(stop, len(mapping))
    if address % PAGE or start >= stop:
        return
    start -= start % PAGE
    _madvise(address + start, stop - start, mmap.MADV_WILLNEED)
