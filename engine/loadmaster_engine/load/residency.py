"""Which parts of a mapping are in memory already, as the kernel says."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

import numpy as np

PAGE = mmap.PAGESIZE

_mincore = ctypes.CDLL(None, use_errno=True).mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def absent(mapping: memoryview, start: int, stop: int, piece: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces of `piece` bytes of `[start, stop)` that have a page outside memory. Loads and touches nothing.

    The kernel tells a process only about files that it owns or may write to and calls all others resident, so for those
    nothing is yielded. Nor is anything for memory that begins inside a page, which is no mapping of a file.
    """
    if np.frombuffer(mapping, dtype=np.uint8).ctypes.data % PAGE:
        return
    start -= start % PAGE
    resident = _resident(mapping, start, stop)
    step = max(1, piece // PAGE)
    for first in range(0, len(resident), step):
        if not resident[first : first + step].all():
            begin = start + first * PAGE
            yield begin, min(stop, begin + step * PAGE)


def present(memory: memoryview) -> int:
    """Return the bytes of anonymous memory, from the beginning of a page on, whose pages exist."""
    return min(len(memory), int(_resident(memory, 0, len(memory)).sum()) * PAGE)


def _resident(mapping: memoryview, start: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return one truth value per page of `[start, stop)`; `start` is the beginning of a page."""
    pages = -(-(stop - start) // PAGE)
    answer = np.zeros(pages, dtype=np.uint8)
    address = np.frombuffer(mapping, dtype=np.uint8).ctypes.data + start
    if pages and _mincore(address, stop - start, answer.ctypes.data):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return (answer & 1).astype(np.bool_)
