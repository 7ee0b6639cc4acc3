"""The page cache: bring files into it, drop them from it, and see how much of them is there."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BLOCK: Final = 8 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def warm(files: Sequence[Path]) -> None:
    """Read every file once."""
    buffer = bytearray(BLOCK)
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def drop(files: Sequence[Path]) -> None:
    """Have the kernel forget the files' pages. Pages that another process maps stay; `resident` tells."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident(files: Sequence[Path]) -> float:
    """Return the part of the files' pages that is in the page cache, 0 to 1."""
    pages = present = 0
    for file in files:
        states = _states(file)
        pages += len(states)
        present += sum(state & 1 for state in states)
    return present / pages if pages else 1.0


def _states(file: Path) -> bytes:
    """Return one byte per page of a file; its lowest bit says whether the page is in memory."""
    size = file.stat().st_size
    if not size:
        return b""
    with (
        file.open("rb") as stream,
        mmap.mmap(stream.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as pages,
    ):
        states = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(pages)
        failed = _libc.mincore(ctypes.addressof(first), size, states)
        del first
        if failed:
            raise OSError(ctypes.get_errno(), "mincore failed", str(file))
        return bytes(states)
