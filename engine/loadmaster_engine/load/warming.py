"""Bringing mapped files into memory once per node: every rank reads a share of its own, in large pieces, before any copies.

Ranks that fault one cold file at the same time read it in small, scattered requests. So the bytes that anyone takes out of a
mapping are divided among the ranks, whoever needs them, and what is not in memory yet is read ahead through the page cache,
which is left warm for the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import local
from typing import Final

from loadmaster_engine.load.lanes import LANES, in_lanes
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.load.residency import absent
from loadmaster_engine.plan.shares import FileRange

PIECE: Final = 1 << 20
"""Bytes of one read: large for a disk, small enough that the buffer it is thrown away in stays in the processor's cache."""

DEPTH: Final = 8
"""Pieces that the ranks of a node have in flight together, at least. With fewer, buffered reads are slower than the disk."""


def warm(files: FileSet, ranges: Iterable[FileRange], progress: Callable[[int], None], ranks: int = 1) -> int:
    """Read what is not in memory of `ranges`, several pieces at a time, and return the bytes read. `ranks` do this together.

    Calls `progress` with the bytes so far. `files` is left as it was.
    """
    own = files.sibling()
    work = []
    try:
        for part in ranges:
            mapping = own.mapping(part.file)
            if mapping is not None:
                stop = min(part.stop, len(mapping))
                work += [(part.file, *piece) for piece in absent(mapping, min(part.start, stop), stop, PIECE)]
        done = 0
        for count in in_lanes(own, work, _reader(), max(LANES, DEPTH // ranks)):
            done += count
            progress(done)
        return done
    finally:
        own.close()


def _reader() -> Callable[[FileSet, tuple[int, int, int]], int]:
    """Return a function that reads one piece into a buffer of the calling thread's own."""
    kept = local()

    def read(files: FileSet, piece: tuple[int, int, int]) -> int:
        if not hasattr(kept, "buffer"):
            kept.buffer = memoryview(bytearray(PIECE))
        file, start, stop = piece
        files.read_into(file, start, kept.buffer[: stop - start])
        return stop - start

    return read
