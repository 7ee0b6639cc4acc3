"""Who brings mapped files into memory: what all ranks of a node take out of mappings, divided among them once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from loadmaster_hookspecs.plan import LoadPlan


class FileRange(msgspec.Struct, frozen=True, array_like=True):
    """Bytes `start` to `stop` of file `file`."""

    file: int
    start: int
    stop: int


def shares(plan: LoadPlan) -> list[tuple[FileRange, ...]]:
    """Return, for every rank, the ranges that it brings in: together all that some rank takes out of a mapping, once."""
    mapped = (op for rank in plan.ranks for op in rank.reads if op.via in ("mapped", "gathered"))
    return divided(list(merged((op.file, op.source.offset, op.source.end) for op in mapped)), len(plan.ranks))


def merged(ranges: Iterable[tuple[int, int, int]], *, touching: bool = True) -> Iterator[FileRange]:
    """Yield (file, start, stop) in order, those that overlap as one; and where `touching`, those that meet too."""
    current: FileRange | None = None
    for file, start, stop in sorted(ranges):
        if current is not None and file == current.file and start < current.stop + touching:
            current = FileRange(file, current.start, max(stop, current.stop))
            continue
        if current is not None:
            yield current
        current = FileRange(file, start, stop)
    if current is not None:
        yield current


def divided(ranges: Sequence[FileRange], ranks: int) -> list[tuple[FileRange, ...]]:
    """Return the ranges divided among `ranks` ranks: as many bytes each, and each byte once."""
    total = sum(part.stop - part.start for part in ranges)
    return [tuple(_slice(ranges, total * rank // ranks, total * (rank + 1) // ranks)) for rank in range(ranks)]


def _slice(ranges: Iterable[FileRange], begin: int, end: int) -> Iterator[FileRange]:
    """Yield bytes `begin` to `end` of the ranges laid end to end."""
    at = 0
    for part in ranges:
        size = part.stop - part.start
        low, high = max(begin - at, 0), min(end - at, size)
        if low < high:
            yield FileRange(part.file, part.start + low, part.start + high)
        at += size
