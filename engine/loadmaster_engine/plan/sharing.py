"""Bytes that several ranks need: blocks are split where ranks overlap, and only the first reader is charged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import msgspec

from loadmaster_engine.plan.boxes import canonical
from loadmaster_engine.plan.parameters import Block, LocalTensor
from loadmaster_hookspecs.plan import ReadOp, Region


def split_overlaps(ranks: Sequence[LocalTensor]) -> list[LocalTensor]:
    """Return the ranks' views of one tensor with blocks cut so that any two are either the same box or disjoint."""
    cuts = [sorted(points) for points in _cut_points(ranks)]
    return [local._replace(blocks=tuple(part for block in local.blocks for part in _split(block, cuts))) for local in ranks]


def mark_repeated(ranks: Sequence[Sequence[ReadOp]], *, gather: bool, once: bool = False) -> list[tuple[ReadOp, ...]]:
    """Mark operations whose source bytes an earlier rank reads too.

    With `gather`, those that would be read come out of the shared mapping instead, where the first reader has put them. With
    `once`, all of them, the first one's too, are read by one rank.
    """
    seen: set[tuple[int, Region]] = set()
    marked: list[tuple[ReadOp, ...]] = []
    for ops in ranks:
        row = []
        keys = [(op.file, canonical(op.source)) for op in ops]
        for op, key in zip(ops, keys, strict=True):
            if key in seen:
                via = "gathered" if gather and op.via == "direct" else op.via
                op = msgspec.structs.replace(op, repeated=True, via=via)
            row.append(op)
        seen.update(keys)
        marked.append(tuple(row))
    if not once:
        return marked
    repeated = _keys(marked)
    return [tuple(_shared(op, repeated) for op in row) for row in marked]


def _keys(ranks: Sequence[Sequence[ReadOp]]) -> frozenset[tuple[int, Region]]:
    """Return file and bytes of what several ranks read."""
    return frozenset((op.file, canonical(op.source)) for ops in ranks for op in ops if op.repeated)


def _shared(op: ReadOp, repeated: frozenset[tuple[int, Region]]) -> ReadOp:
    if op.via == "mapped" or (op.file, canonical(op.source)) not in repeated:
        return op
    return msgspec.structs.replace(op, via="node_once")


def _cut_points(ranks: Sequence[LocalTensor]) -> list[set[int]]:
    ndim = len(ranks[0].shape)
    points: list[set[int]] = [set() for _ in range(ndim)]
    for local in ranks:
        for block in local.blocks:
            for dim, interval in enumerate(block.box):
                points[dim].update(interval)
    return points


def _split(block: Block, cuts: Sequence[Sequence[int]]) -> list[Block]:
    """Cut one block at every point that lies strictly inside it."""
    sides = []
    for (start, stop), points in zip(block.box, cuts, strict=True):
        inner = [start, *(point for point in points if start < point < stop), stop]
        sides.append(list(pairwise(inner)))
    return [
        Block(
            box,
            tuple(origin + low - begin for origin, (low, _), (begin, _) in zip(block.origin, box, block.box, strict=True)),
        )
        for box in product(*sides)
    ]
