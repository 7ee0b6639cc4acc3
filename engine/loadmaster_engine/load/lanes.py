"""Several threads of one rank over one list of work, each with files of its own: reads wait in turn while others copy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final, TypeVar

from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.load.residency import PAGE, absent
from loadmaster_engine.plan.shares import FileRange

LANES: Final = 4
"""Threads, at most. A disk wants several requests in flight to be busy, and so does a network."""

SAMPLES: Final = 64
"""Ranges of which a page is looked for in memory, at most."""

Work = TypeVar("Work")


def lanes_for(files: FileSet, ranges: Sequence[FileRange], ranks: int) -> int:
    """Return how many lanes pay for reading `ranges` on a machine that `ranks` ranks share.

    Bytes that are in memory are copied by the processor, and more threads than it has for this rank only get in each other's
    way. Bytes that are not are waited for, and so are those of files that cannot be mapped, about which nothing is known.
    """
    share = max(1, len(os.sched_getaffinity(0)) // ranks)
    return min(LANES, share) if _in_memory(files, ranges) else LANES


def in_lanes(files: FileSet, work: Sequence[Work], do: Callable[[FileSet, Work], int], lanes: int = LANES) -> Iterator[int]:
    """Call `do` for every item, begun in order and `lanes` at a time, and yield what each returns, in order.

    What the threads count is added to `files` at the end. After an error no further item is begun. A single lane is the
    calling thread, with files of its own too: pages that are copied out of a mapping stay with the process as long as it lasts.
    """
    sets = [files.sibling() for _ in range(max(1, min(lanes, len(work))))]
    if len(sets) == 1:
        try:
            yield from (do(sets[0], item) for item in work)
        finally:
            files.merge(sets[0])
        return
    idle: SimpleQueue[FileSet] = SimpleQueue()
    for own in sets:
        idle.put(own)

    def in_turn(item: Work) -> int:
        own = idle.get_nowait()
        try:
            return do(own, item)
        finally:
            idle.put(own)

    pool = ThreadPoolExecutor(len(sets), thread_name_prefix="loadmaster-read")
    try:
        yield from pool.map(in_turn, work)
    finally:
        pool.shutdown(cancel_futures=True)
        for own in sets:
            files.merge(own)


def _in_memory(files: FileSet, ranges: Sequence[FileRange]) -> bool:
    """Return whether a sample of the ranges, one page of each, is in memory."""
    for part in ranges[:: -(-len(ranges) // SAMPLES) or 1]:
        mapping = files.mapping(part.file)
        if mapping is None or any(absent(mapping, part.start, min(part.start + 1, part.stop, len(mapping)), PAGE)):
            return False
    return True
