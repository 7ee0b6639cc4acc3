"""Where to cut an axis: one interval per rank, never through a unit."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.sharding import Interval, Topology, Unit

VOCAB_ALIGNMENT = 64
"""Rows. Every rank's part of the vocabulary is padded to a multiple of this, as matrix kernels like it."""

SMOOTH_QUANTA = (64, 32, 16, 8)
"""Multiples, in units, at which an axis that does not divide evenly is cut, the coarsest that keeps ranks balanced."""

MIN_QUANTA_PER_RANK = 8


class Cut(NamedTuple):
    """What one rank owns of an axis: the intervals of logical elements, and the zeros appended to them."""

    intervals: tuple[Interval, ...]
    padding: int = 0


def cut_axis(unit: Unit, size: int, topology: Topology) -> list[Cut]:
    """Return every rank's part of an axis of `size` logical elements."""
    world = topology.tensor_parallel
    if unit.segments > 1:
        return _alike(unit, size // unit.segments, topology)
    if unit.kind == "vocab":
        return _padded(size, -(-size // (world * VOCAB_ALIGNMENT)) * VOCAB_ALIGNMENT, world)
    if unit.kind == "query_heads":
        return [_scaled(part, unit.size, size) for part in query_heads(unit.count, unit.ratio, topology)]
    if unit.kind == "kv_heads":
        queries = query_heads(unit.count * unit.ratio, unit.ratio, topology)
        return [_scaled(kv_heads(part, unit.ratio), unit.size, size) for part in queries]
    if topology.equal:
        return _padded(size, -(-unit.count // world) * unit.size, world)
    return [_scaled(part, unit.size, size) for part in _smooth(unit.count, world)]


def _alike(unit: Unit, size: int, topology: Topology) -> list[Cut]:
    """Cut every segment of `size` elements at the same places. Raises PlanError where that would need padding."""
    cuts = cut_axis(msgspec.structs.replace(unit, segments=1), size, topology)
    if any(cut.padding for cut in cuts):
        raise PlanError(
            "LM-PLAN-EQUAL",
            f"{size} elements in each half of a packed matrix cannot be divided equally over {topology.tensor_parallel} ranks",
            hints=["allow uneven ranks", "use a tensor parallel size that divides them"],
        )
    starts = [segment * size for segment in range(unit.segments)]
    return [Cut(tuple(Interval(at + part.start, at + part.stop) for at in starts for part in cut.intervals)) for cut in cuts]


def query_heads(heads: int, ratio: int, topology: Topology) -> list[Interval]:
    """Return every rank's query heads.

    While every rank can have a key-value head of its own, whole groups stay together, so that no key-value head is needed
    twice. With more ranks than key-value heads, or when ranks must be equal, the query heads themselves are divided.
    """
    groups = heads // ratio
    if topology.tensor_parallel <= groups and not topology.equal:
        return [Interval(part.start * ratio, part.stop * ratio) for part in _even(groups, topology.tensor_parallel)]
    return _even(heads, topology.tensor_parallel)


def kv_heads(queries: Interval, ratio: int) -> Interval:
    """Return the key-value heads that a range of query heads attends with."""
    return Interval(queries.start // ratio, -(-queries.stop // ratio))


def _even(count: int, parts: int) -> list[Interval]:
    """Divide `count` units into `parts` runs whose lengths differ by one at most, the longer ones first."""
    base, extra = divmod(count, parts)
    starts = [part * base + min(part, extra) for part in range(parts + 1)]
    return [Interval(start, stop) for start, stop in pairwise(starts)]


def _smooth(count: int, parts: int) -> list[Interval]:
    """Divide `count` units evenly; where they do not divide, cut at smooth multiples that suit vector units and caches."""
    if count % parts == 0:
        return _even(count, parts)
    for quantum in SMOOTH_QUANTA:
        if count >= quantum * parts * MIN_QUANTA_PER_RANK:
            quanta = -(-count // quantum)
            return [Interval(part.start * quantum, min(part.stop * quantum, count)) for part in _even(quanta, parts)]
    return _even(count, parts)


def _padded(size: int, rows: int, parts: int) -> list[Cut]:
    """Give every rank `rows` elements, with zeros where the axis has ended."""
    starts = [min(part * rows, size) for part in range(parts + 1)]
    return [Cut((Interval(a, b),), rows - (b - a)) for a, b in pairwise(starts)]


def _scaled(part: Interval, unit: int, size: int) -> Cut:
    return Cut((Interval(min(part.start * unit, size), min(part.stop * unit, size)),))
