"""Bytes that one rank reads for all: in which rounds they pass through memory that the ranks share, and who reads what.

An operation `node_once` is cut into parts, each covered by a range of its file. Ranges that overlap, because several ranks
take their parts of the same rows, are one. Rounds are filled with them in file order, and every round is divided among the
ranks by bytes, whoever needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from loadmaster_engine.plan.shares import FileRange, divided, merged
from loadmaster_hookspecs.plan import RankPlan, ReadOp, Region

ROUND_BYTES: Final = 32 << 20
"""Bytes of one round, per rank. A range that cannot be cut further may be larger and has a round of its own."""


class Round(msgspec.Struct, frozen=True, array_like=True):
    """The ranges of one round as they lie in shared memory, end to end, and the part of them that one rank reads."""

    ranges: tuple[FileRange, ...]
    share: tuple[FileRange, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that the round takes."""
        return sum(part.stop - part.start for part in self.ranges)


def rounds(ranks: Sequence[RankPlan]) -> list[tuple[Round, ...]]:
    """Return the rounds of every rank. They differ in who reads what."""
    covered = (
        (op.file, source.offset, source.end)
        for rank in ranks
        for op in rank.reads
        if op.via == "node_once"
        for source, _ in cut(op)
    )
    clusters = merged(covered, touching=False)
    ranges = [tuple(_joined(group)) for group in _filled(clusters, ROUND_BYTES * len(ranks))]
    by_round = [divided(group, len(ranks)) for group in ranges]
    return [tuple(map(Round, ranges, (row[rank] for row in by_round))) for rank in range(len(ranks))]


def alone(part: RankPlan) -> RankPlan:
    """Return the plan of a rank that others do not wait for: what one would read for all, it reads for itself.

    The same bytes reach the same places.
    """
    reads = (msgspec.structs.replace(op, via="overread") if op.via == "node_once" else op for op in part.reads)
    return msgspec.structs.replace(part, reads=tuple(reads))


def shared_bytes(one: Sequence[Round]) -> int:
    """Return the size of one half of the shared memory: while a round is copied out of one, the next is read into the other."""
    return max((part.nbytes for part in one), default=0)


def with_shared_scratch(ranks: Iterable[RankPlan]) -> tuple[RankPlan, ...]:
    """Return the ranks with their part of the shared memory added to their scratch."""
    every = tuple(ranks)
    half = max((shared_bytes(one) for one in rounds(every)), default=0)
    part = -(-2 * half // len(every))
    return tuple(msgspec.structs.replace(rank, scratch=rank.scratch + part) for rank in every) if half else every


def cut(op: ReadOp) -> Iterator[tuple[Region, Region]]:
    """Yield matching parts of an operation's source and destination, each covered by at most `ROUND_BYTES` of the file.

    Parts of the same rows on other ranks are cut at the same rows. Operations with a transform keep whole runs.
    """
    yield from _cut(op.source, op.dest, whole_runs=op.transform is not None)


def _cut(source: Region, dest: Region, *, whole_runs: bool) -> Iterator[tuple[Region, Region]]:
    if not source.steps:
        step = source.run if whole_runs else ROUND_BYTES
        for start in range(0, source.run, step):
            size = min(step, source.run - start)
            yield (
                Region(source.offset + start, size),
                dest if size == source.run else Region(dest.offset + start, size),
            )
        return
    (count, stride), *inner = source.steps
    (_, dest_stride), *dest_inner = dest.steps
    rows = max(1, ROUND_BYTES // stride)
    for start in range(0, count, rows):
        size = min(rows, count - start)
        head, dest_head = (((size, stride),), ((size, dest_stride),)) if rows > 1 else ((), ())
        part = Region(source.offset + start * stride, source.run, (*head, *inner))
        dest_part = Region(dest.offset + start * dest_stride, dest.run, (*dest_head, *dest_inner))
        if rows > 1:
            yield part, dest_part
        else:
            yield from _cut(part, dest_part, whole_runs=whole_runs)


def _filled(clusters: Iterable[FileRange], limit: int) -> Iterator[list[FileRange]]:
    """Yield the clusters in groups of at most `limit` bytes, or of a single larger one."""
    group: list[FileRange] = []
    size = 0
    for part in clusters:
        if group and size + part.stop - part.start > limit:
            yield group
            group, size = [], 0
        group.append(part)
        size += part.stop - part.start
    if group:
        yield group


def _joined(group: Iterable[FileRange]) -> Iterator[FileRange]:
    return merged((part.file, part.start, part.stop) for part in group)
