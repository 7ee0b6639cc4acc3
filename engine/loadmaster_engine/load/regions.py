"""Regions of memory as arrays, and how large copies are cut into bounded steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from loadmaster_hookspecs.plan import Region

Bytes = npt.NDArray[np.uint8]


def as_array(memory: memoryview, region: Region) -> Bytes:
    """Return the bytes of `region` in `memory` as a strided array view, one dimension per loop and one for the run.

    Raises ValueError when the region leaves the memory.
    """
    if region.offset < 0 or region.end > len(memory):
        raise ValueError(f"bytes {region.offset} to {region.end} lie outside a buffer of {len(memory)}")
    flat: Bytes = np.frombuffer(memory, dtype=np.uint8)
    shape = (*(count for count, _ in region.steps), region.run)
    strides = (*(stride for _, stride in region.steps), 1)
    return np.lib.stride_tricks.as_strided(flat[region.offset :], shape, strides)


def chunks(source: Region, dest: Region, limit: int, granule: tuple[int, int] = (1, 1)) -> Iterator[tuple[Region, Region]]:
    """Yield matching parts of two regions with at most about `limit` source bytes each.

    Regions are cut along their outermost loop; a single run is cut at multiples of `granule` (source and destination bytes).
    """
    if source.nbytes <= limit:
        yield source, dest
    elif not source.steps:
        step = max(1, limit // granule[0])
        for start in range(0, source.run // granule[0], step):
            size = min(step, source.run // granule[0] - start)
            yield (
                Region(source.offset + start * granule[0], size * granule[0]),
                Region(dest.offset + start * granule[1], size * granule[1]),
            )
    else:
        yield from _cut_outer(source, dest, limit, granule)


def _cut_outer(source: Region, dest: Region, limit: int, granule: tuple[int, int]) -> Iterator[tuple[Region, Region]]:
    (count, stride), *inner = source.steps
    (_, dest_stride), *dest_inner = dest.steps
    per_row = source.nbytes // count
    step = max(1, limit // per_row)
    for start in range(0, count, step):
        size = min(step, count - start)
        head = ((size, stride),) if size > 1 else ()
        dest_head = ((size, dest_stride),) if size > 1 else ()
        part = Region(source.offset + start * stride, source.run, (*head, *inner))
        dest_part = Region(dest.offset + start * dest_stride, dest.run, (*dest_head, *dest_inner))
        if size == 1 and part.nbytes > limit:
            yield from chunks(part, dest_part, limit, granule)
        else:
            yield part, dest_part


def clusters(source: Region, dest: Region, gap: int) -> Iterator[tuple[Region, Region]]:
    """Yield matching parts of two regions such that no two runs of a part lie more than `gap` bytes apart in the source."""
    inner = source.run
    for depth, (count, stride) in reversed(list(enumerate(source.steps))):
        if stride - inner > gap:
            for index in product(*(range(count) for count, _ in source.steps[: depth + 1])):
                yield _at(source, index, depth + 1), _at(dest, index, depth + 1)
            return
        inner += (count - 1) * stride
    yield source, dest


def tight(region: Region) -> Region:
    """Return the region of a dense buffer that the runs of `region` fill when they are written one after another."""
    steps, stride = [], region.run
    for count, _ in reversed(region.steps):
        steps.append((count, stride))
        stride *= count
    return Region(0, region.run, tuple(reversed(steps)))


def _at(region: Region, index: Sequence[int], depth: int) -> Region:
    """Return one repetition of the `depth` outermost loops of a region."""
    start = sum(number * stride for number, (_, stride) in zip(index, region.steps, strict=False))
    return Region(region.offset + start, region.run, region.steps[depth:])
