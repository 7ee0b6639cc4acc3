"""Who brings mapped files into memory: what all ranks of a node take out of mappings, divided among them once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from loadmaster_hookspecs.plan import LoadPlan


class FileRange(msgspec.Struct, frozen=True, array_like=True):
    """Bytes `start` to `stop` of file `file`."""

    file: int
    start: int
    stop: int


def shares(plan: LoadPlan) -> list[tuple[FileRange, ...]]:
    """Return, for every rank, the ranges that it brings in: together all that some rank takes out of a mapping, once."""
    ranges = list(_merged(plan))
    total = sum(part.stop - part.start for part in ranges)
    world = len(plan.ranks)
    return [tuple(_slice(ranges, total * rank // world, total * (rank + 1) // world)) for rank in range(world)]


def _merged(plan: LoadPlan) -> Iterator[FileRange]:
    """Yield the ranges of files that operations out of a mapping cover, merged and in order."""
    covered = sorted(
        (op.file, op.source.offset, op.source.end)
        for rank in plan.ranks
        for op in rank.reads
        if op.via in ("mapped", "gathered")
    )
    current: FileRange | None = None
    for file, start, stop in covered:
        if current is not None and file == current.file and start <= current.stop:
            current = FileRange(file, current.start, max(stop, current.stop))
            continue
        if current is not None:
            yield current
        current = FileRange(file, start, stop)
    if current is not None:
        yield current


def _slice(ranges: Iterable[FileRange], begin: int, end: int) -> Iterator[FileRange]:
    """Yield bytes `begin` to `end` of the ranges laid end to end."""
    at = 0
    for part in ranges:
        size = part.stop - part.start
        low, high = max(begin - at, 0), min(end - at, size)
        if low < high:
            yield FileRange(part.file, part.start + low, part.start + high)
        at += size
