"""What ties the life of one process to that of another, by the kernel's hand alone.

Both ties also end a process that is stuck in native code and would never look at a socket.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_pipe(descriptor: int) -> None:
    """Have the kernel kill this process when the last write end of the pipe `descriptor` closes.

    Used by the fork server: the host alone holds the write end. A parent-death signal would not do here, because it fires
    when the *thread* of the host that started the server ends.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, process `parent`, ends; exit at once if it has ended already.

    Used by workers: their parent, the fork server, forks on its main thread only.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def set_process_name(name: str) -> None:
    """Name this process as `ps` and `top` show it; the kernel keeps the first 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
