"""The floor: one bare process per rank that reads the bytes of its part of a plan into fresh huge-page memory.

Neither torch nor numpy is imported; a rank is a fork of this small process.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.runs.process_memory import own_memory
from bench.runs.stopwatch import Stopwatch, report

Read = tuple[int, int, int]
"""File number, offset and length in bytes."""


def main(ranges: str, variant: str) -> None:
    """Read the ranges of `variant` in the document at path `ranges` and report; the load ends with the slowest rank."""
    stopwatch = Stopwatch()
    document = json.loads(Path(ranges).read_text())
    ranks = [[tuple(read) for read in rank] for rank in document[variant]]
    crew = [_Rank(document["files"], reads) for reads in ranks]
    stopwatch.mark("imported")
    for rank in crew:
        rank.answer()
    stopwatch.gate()
    with stopwatch.phase("load"):
        for rank in crew:
            rank.tell(b"g")
        seconds = [float(rank.answer()) for rank in crew]
    memory = own_memory()
    for rank in crew:
        rank.tell(b"e")
        rank.join()
    detail = {f"rank_{number}": value for number, value in enumerate(seconds)}
    report(stopwatch.seconds, nbytes=sum(read[2] for reads in ranks for read in reads), memory=memory, detail=detail)


class _Rank:
    """A forked process that waits for `g`, reads, answers with its seconds, and keeps its memory until told `e`."""

    def __init__(self, files: Sequence[str], reads: Sequence[Read]) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            # boundary: a forked child must never return into its parent's code
            try:
                _read_all(files, reads, lambda: os.read(commands, 1), lambda text: os.write(answers, text.encode().ljust(32)))
            finally:
                os._exit(0)
        os.close(commands)
        os.close(answers)

    def tell(self, command: bytes) -> None:
        os.write(self._commands, command)

    def answer(self) -> str:
        text = os.read(self._answers, 32)
        if not text:
            raise RuntimeError("a rank of the floor ended early")
        return text.decode().strip()

    def join(self) -> None:
        os.waitpid(self.pid, 0)


def _read_all(files: Sequence[str], reads: Sequence[Read], command: Callable[[], bytes], answer: Callable[[str], int]) -> None:
    handles = [os.open(file, os.O_RDONLY) for file in files]
    total = sum(length for _, _, length in reads)
    answer("ready")
    command()
    start = time.perf_counter()
    # Python's default is shared memory, which gets no huge pages.
    memory = mmap.mmap(-1, max(total, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    target, at = memoryview(memory), 0
    for file, offset, length in reads:
        if os.preadv(handles[file], [target[at : at + length]], offset) != length:
            raise RuntimeError("a read of the floor was short")
        at += length
    answer(f"{time.perf_counter() - start:.6f}")
    command()


if __name__ == "__main__":
    main(*sys.argv[1:3])
