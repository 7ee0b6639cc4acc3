"""Random access to one local file: positioned reads, and a shared mapping."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Final

MAP_NORESERVE: Final = 0x4000
"""From Linux's mman.h; Python's mmap module does not name it."""


class LocalReader:
    """Reads one open file. Owns the descriptor and the mapping; used by one process and one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mmap: mmap.mmap | None = None
        self._view: memoryview | None = None

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill `view` from byte `offset` on; return the bytes read, fewer than asked for only at the end of the file."""
        done = 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done

    def mapping(self) -> memoryview:
        """Return the whole file as a view of the page cache that all processes share; writes stay in this process."""
        if self._view is None:
            self._view = self._map()
        return self._view

    def close(self) -> None:
        """Release descriptor and mapping; parts of the mapping that the caller still holds keep it alive until dropped."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        with contextlib.suppress(BufferError):
            if self._view is not None:
                self._view.release()
            if self._mmap is not None:
                self._mmap.close()
        self._view = self._mmap = None

    def _map(self) -> memoryview:
        if os.fstat(self._descriptor).st_size == 0:
            return memoryview(b"")  # the kernel refuses to map nothing
        # Private and writable: pages are the page cache's own until someone writes, so that a stray write to a parameter
        # neither kills the process nor reaches the file. Not reserved: such a copy is never expected, so no memory is
        # set aside for it.
        flags = mmap.MAP_PRIVATE | MAP_NORESERVE
        self._mmap = mmap.mmap(self._descriptor, 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        return memoryview(self._mmap)
