"""Box algebra: boxes of arrays in C order, and the strided byte regions they are.

A box is one half-open interval per dimension. Copying a box between two arrays is a nest of loops with a stride on each
side; loops that are tight on both sides merge, so a contiguous copy becomes a single run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from loadmaster_hookspecs.plan import Region

Box = tuple[tuple[int, int], ...]
"""One half-open interval of indices per dimension."""

Loop = tuple[int, int, int]
"""Count, source stride and destination stride, in elements."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box that covers an array of `shape`."""
    return tuple((0, extent) for extent in shape)


def intersect(left: Box, right: Box) -> Box | None:
    """Return the common part of two boxes, or None where they do not meet. Boxes of no dimension meet."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return None if any(start >= stop for start, stop in common) else common


def volume(box: Box) -> int:
    """Return the number of elements in a box."""
    return prod(stop - start for start, stop in box)


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the C-order strides of an array, in elements."""
    result = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        result[dim] = result[dim + 1] * shape[dim + 1]
    return tuple(result)


def copy_regions(
    extents: Sequence[int],
    source: tuple[int, Sequence[int], int],
    dest: tuple[int, Sequence[int], int],
) -> tuple[Region, Region]:
    """Return the byte regions of a copy of `extents` elements between two arrays, walked in the same order.

    `source` and `dest` are (offset in bytes of the first element, stride in elements per dimension, bytes per element). Both
    regions have the same loop counts; they differ in bytes when the element sizes differ.
    """
    run, loops = _collapse([(e, s, d) for e, s, d in zip(extents, source[1], dest[1], strict=True) if e != 1])
    return (
        Region(source[0], run * source[2], tuple((count, step * source[2]) for count, step, _ in loops)),
        Region(dest[0], run * dest[2], tuple((count, step * dest[2]) for count, _, step in loops)),
    )


def canonical(region: Region) -> Region:
    """Return the region in the one form that all equal sets of runs share: loops that are tight on their own side merge."""
    if not region.steps:
        return region
    run, loops = _collapse([*((count, stride, stride) for count, stride in region.steps), (region.run, 1, 1)])
    return Region(region.offset, run, tuple((count, stride) for count, stride, _ in loops))


def _collapse(loops: list[Loop]) -> tuple[int, list[Loop]]:
    """Merge loops that are tight on both sides; return the innermost run in elements and the loops that remain."""
    run = 1
    while loops and loops[-1][1] == run and loops[-1][2] == run:
        run *= loops.pop()[0]
    merged: list[Loop] = []
    for count, source, dest in loops:
        if merged and merged[-1][1] == count * source and merged[-1][2] == count * dest:
            merged[-1] = (merged[-1][0] * count, source, dest)
        else:
            merged.append((count, source, dest))
    return run, merged
