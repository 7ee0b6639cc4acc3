"""Memory that the ranks of a node have in common, for bytes that one of them reads for all."""

from __future__ import annotations

import contextlib
import mmap
import os

from loadmaster_hookspecs.errors import ResourceError


class SharedMemory:
    """Memory without a name that the processes of one user on this machine map by its `address`. Owns the mapping.

    Its maker, the one without an address, also owns the descriptor behind it. The memory goes with the last process that has
    it. Raises ResourceError LM-MEMORY-SHARED when there is none to be had.
    """

    def __init__(self, nbytes: int, address: str = "") -> None:
        self._made = -1
        try:
            if not address:
                self._made = os.memfd_create("loadmaster-exchange", os.MFD_CLOEXEC)
                os.ftruncate(self._made, nbytes)
            self.address = address or f"/proc/{os.getpid()}/fd/{self._made}"
            self._memory = _map(self.address, nbytes)
        except (OSError, ValueError) as error:
            self._forget()
            raise ResourceError(
                "LM-MEMORY-SHARED",
                f"{nbytes / 1e6:.0f} MB of memory cannot be shared between the ranks",
                why=str(error),
                hints=["use --read-mode overread, which needs none and reads some bytes on several ranks"],
            ) from error
        self.bytes = memoryview(self._memory)

    def close(self) -> None:
        """Unmap the memory. Safe to call twice."""
        self.bytes.release()
        with contextlib.suppress(BufferError):  # a thread that still reads holds a part; the mapping goes with it
            self._memory.close()
        self._forget()

    def _forget(self) -> None:
        if self._made >= 0:
            os.close(self._made)
            self._made = -1


def _map(address: str, nbytes: int) -> mmap.mmap:
    descriptor = os.open(address, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, nbytes)
    finally:
        os.close(descriptor)
