"""Ballast: a process that holds faulted-in memory and gives it to the kernel right before a contestant's clock starts.

A virtual machine's host takes back memory that its guest has freed, within about a second, and the first touch of such
memory is ten times slower. What the ballast frees has just been backed, so every contestant finds the same memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

from bench.runs.stopwatch import release_ballast

HOLD_TIMEOUT_S: Final = 300.0
"""Seconds that faulting the memory in may take: memory that the host took back comes at a quarter of a GB a second."""

HEADROOM: Final = 2 << 30
"""Bytes of free memory that the ballast leaves to the contestant's imports."""

_MADV_HUGEPAGE: Final = 14
_MADV_POPULATE_WRITE: Final = 23


def free_memory() -> int:
    """Return the bytes that hold nothing at all: taking them does not push files out of the page cache."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not tell MemFree")


def ballast_size(wanted: int, free: int) -> int:
    """Return how much to hold: what the round needs, at most what is free without `HEADROOM`, in whole megabytes."""
    return max(0, min(wanted, free - HEADROOM)) >> 20 << 20


class Ballast:
    """Holds `nbytes` in a process of its own until someone asks at `address`, or `release` is called. A context manager."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = f"loadmaster-bench-{os.getpid()}-{id(self):x}" if nbytes else ""
        self._holder: subprocess.Popen[str] | None = None

    def __enter__(self) -> Ballast:
        if self.nbytes:
            command = [sys.executable, "-m", "bench.ballast", str(self.nbytes), self.address]
            self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if self._line(HOLD_TIMEOUT_S) != "held":
                self.__exit__()
                raise OSError(f"the ballast could not take {self.nbytes / 1e9:.1f} GB")
        return self

    def release(self) -> None:
        """Free the memory now."""
        release_ballast(self.address)

    def was_released(self) -> bool:
        """Return whether anyone asked for the memory so far. Ends the holder."""
        if self._holder is None or self._holder.stdin is None:
            return False
        self._holder.stdin.close()
        return self._line(30.0) == "freed"

    def __exit__(self, *_: object) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
            for stream in (self._holder.stdin, self._holder.stdout):
                if stream is not None:
                    stream.close()
            self._holder = None

    def _line(self, timeout: float) -> str:
        if self._holder is None or self._holder.stdout is None:
            return ""
        ready, _, _ = select.select([self._holder.stdout], [], [], timeout)
        return self._holder.stdout.readline().strip() if ready else ""


def hold(nbytes: int, address: str) -> None:
    """Be the holder: fault memory in, print `held`, free it for the first who connects, and answer all who do.

    Ends when standard input does, and prints whether the memory was freed before.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{address}")
        listener.listen(64)
        memory: mmap.mmap | None = _faulted_in(nbytes)
        _say("held")
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                break
            with listener.accept()[0] as line:
                if memory is not None:
                    memory.close()
                    memory = None
                line.sendall(b"freed")
        _say("kept" if memory else "freed")


def _faulted_in(nbytes: int) -> mmap.mmap:
    """Return anonymous memory whose pages are all there, huge where the kernel has them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    # Python's default is shared memory, which gets no huge pages.
    memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    anchor = ctypes.c_char.from_buffer(memory)
    begin = ctypes.addressof(anchor)
    del anchor
    libc.madvise(begin, nbytes, _MADV_HUGEPAGE)
    half = nbytes // 2 >> 21 << 21
    failed: list[int] = []

    def populate(start: int, length: int) -> None:
        if length and libc.madvise(begin + start, length, _MADV_POPULATE_WRITE):
            failed.append(ctypes.get_errno())

    threads = [threading.Thread(target=populate, args=part) for part in ((0, half), (half, nbytes - half))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise OSError(failed[0], os.strerror(failed[0]))
    return memory


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    hold(int(sys.argv[1]), sys.argv[2])
