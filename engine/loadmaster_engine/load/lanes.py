"""Several threads of one rank over one list of work, each with files of its own: reads wait in turn while others copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final, TypeVar

from loadmaster_engine.load.reading import FileSet

LANES: Final = 4
"""Threads. A disk wants several requests in flight to be busy, and so does a network; two copies at a time fill the memory's
bandwidth on most machines."""

Work = TypeVar("Work")


def in_lanes(files: FileSet, work: Sequence[Work], do: Callable[[FileSet, Work], int]) -> Iterator[int]:
    """Call `do` for every item, begun in order and several at a time, and yield what each returns, in order.

    What the threads count is added to `files` at the end. After an error no further item is begun.
    """
    sets = [files.sibling() for _ in range(min(LANES, len(work)))]
    idle: SimpleQueue[FileSet] = SimpleQueue()
    for own in sets:
        idle.put(own)

    def in_turn(item: Work) -> int:
        own = idle.get_nowait()
        try:
            return do(own, item)
        finally:
            idle.put(own)

    if not sets:
        return
    pool = ThreadPoolExecutor(len(sets), thread_name_prefix="loadmaster-read")
    try:
        yield from pool.map(in_turn, work)
    finally:
        pool.shutdown(cancel_futures=True)
        for own in sets:
            files.merge(own)
