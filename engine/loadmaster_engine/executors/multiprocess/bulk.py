"""Large results in memory that only file descriptors name: a memfd, sealed against any change before it is passed on."""

from __future__ import annotations

import fcntl
import mmap
import os

from loadmaster_engine.executors.multiprocess.frames import ProtocolError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def write_sealed(data: bytes | bytearray | memoryview) -> int:
    """Return the descriptor of a new sealed memfd that holds `data`; the caller closes it. Copies once."""
    descriptor = os.memfd_create("loadmaster-bulk", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        rest = view.cast("B") if view.nbytes else memoryview(b"")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:  # boundary: the descriptor must not outlive a failed or interrupted write
        os.close(descriptor)
        raise
    return descriptor


def map_sealed(descriptor: int, nbytes: int) -> memoryview:
    """Return a read-only view of a sealed memfd of `nbytes` bytes, without a copy. The memory goes with the last view.

    The caller still closes `descriptor`. Raises ProtocolError when the memfd is not sealed or has another size, so that a
    later change can neither alter the data nor fault this process.
    """
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) != _SEALS:
        raise ProtocolError("bulk memory that is not sealed", "its sender could still change it")
    if (size := os.fstat(descriptor).st_size) != nbytes:
        raise ProtocolError("bulk memory of another size", f"{size} bytes instead of {nbytes}")
    if nbytes == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))
