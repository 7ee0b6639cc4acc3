"""Huge pages under memory that a library has allocated: a matrix that is read from end to end then needs few translations."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from typing import Final

PAGE: Final = 2 << 20
"""Bytes of a huge page."""

NEAR: Final = 256 << 10
"""Gap in bytes up to which two pieces of memory are treated as one: allocators keep some bytes between them."""

COLLAPSE: Final = 25
"""MADV_COLLAPSE of Linux 6.1: put what lies there into huge pages now. Older kernels refuse it, and may do so later."""

_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def collapse(pieces: Iterable[tuple[int, int]]) -> int:
    """Ask for huge pages under pieces of memory (address, bytes) that stay, and return the bytes that are asked for."""
    asked = 0
    for begin, end in spans(pieces):
        first, last = -(-begin // PAGE) * PAGE, end // PAGE * PAGE
        if first < last:
            _madvise(first, last - first, mmap.MADV_HUGEPAGE)
            _madvise(first, last - first, COLLAPSE)
            asked += last - first
    return asked


def spans(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return beginnings and ends of memory in order, neighbours joined."""
    found: list[tuple[int, int]] = []
    for address, nbytes in sorted(pieces):
        if found and address - found[-1][1] <= NEAR:
            found[-1] = (found[-1][0], max(found[-1][1], address + nbytes))
        else:
            found.append((address, address + nbytes))
    return found
