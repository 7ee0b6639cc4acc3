"""Returning memory that was freed but that the C library keeps for later."""

from __future__ import annotations

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Of glibc alone; other C libraries return freed memory by themselves, or have no way to be asked."""


def trim_heap() -> None:
    """Return the free pages of this process's heap to the operating system.

    After large blocks were freed, glibc raises the size from which it returns them at once, to up to 32 MiB. What a kernel
    took to repack a matrix would stay with the process, beside what the plan says.
    """
    if _trim is not None:
        _trim(0)
