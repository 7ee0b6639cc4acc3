"""Raw read patterns over the model's files: what the disk gives to a process that does nothing but read into a few buffers."""

from __future__ import annotations

import argparse
import mmap
import os
import queue
import threading
from pathlib import Path

from bench.runs.process_memory import own_memory
from bench.runs.stopwatch import Stopwatch, model_files, report


def main() -> None:
    """Read every file once with `--depth` readers and report; depth 0 is one buffered sequential reader."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--block", type=int, default=1 << 20)
    options = parser.parse_args()
    stopwatch = Stopwatch()
    stopwatch.mark("imported")
    pieces: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    flags = os.O_RDONLY | (os.O_DIRECT if options.depth else 0)
    handles = [os.open(file, flags) for file in model_files(options.model)]
    for handle in handles:
        for offset in range(0, os.fstat(handle).st_size, options.block):
            pieces.put((handle, offset))
    done: list[int] = []
    readers = [threading.Thread(target=_read, args=(pieces, options.block, done)) for _ in range(max(1, options.depth))]
    stopwatch.gate()
    with stopwatch.phase("load"):
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    report(stopwatch.seconds, nbytes=sum(done), memory=own_memory())


def _read(pieces: queue.SimpleQueue[tuple[int, int]], block: int, done: list[int]) -> None:
    buffer = mmap.mmap(-1, block, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    total = 0
    while True:
        try:
            handle, offset = pieces.get_nowait()
        except queue.Empty:
            break
        total += os.preadv(handle, [buffer], offset)
    done.append(total)


if __name__ == "__main__":
    main()
