"""Proof on byte runs: do regions tile a range exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loadmaster_hookspecs.plan import Region

Runs = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Start and length of every run, in bytes."""


def expand(regions: Sequence[Region]) -> Runs:
    """Return every run of the regions, sorted by where it starts."""
    starts = [_starts(region) for region in regions]
    lengths = [np.full(len(rows), _length(region), dtype=np.int64) for rows, region in zip(starts, regions, strict=True)]
    if not starts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    first, size = np.concatenate(starts), np.concatenate(lengths)
    order = np.argsort(first, kind="stable")
    return first[order], size[order]


def tiling_fault(regions: Sequence[Region], start: int, stop: int) -> tuple[str, int] | None:
    """Return (`hole` or `overlap`, byte) where the regions do not tile `[start, stop)` exactly, or None where they do."""
    stop_here = min(stop, _period_end(regions, start, stop))
    regions = _one_period(regions, start, stop)
    if all(region.contiguous for region in regions):
        return _fault_of_ranges(sorted((region.offset, region.nbytes) for region in regions), start, stop_here)
    first, size = expand(regions)
    ends = np.append(start, first + size)
    begins = np.append(first, stop_here)
    wrong = np.flatnonzero(begins != ends)
    return None if len(wrong) == 0 else _fault(int(begins[wrong[0]]), int(ends[wrong[0]]))


def _fault_of_ranges(ranges: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[str, int] | None:
    """The same for sorted (offset, length) ranges: most tensors have a handful, for which arrays cost more than they give."""
    end = start
    for offset, length in (*ranges, (stop, 0)):
        if offset != end:
            return _fault(offset, end)
        end = offset + length
    return None


def _fault(begin: int, end: int) -> tuple[str, int]:
    """Name what lies between the end of one run and the beginning of the next."""
    return ("hole", end) if begin > end else ("overlap", begin)


def _starts(region: Region) -> npt.NDArray[np.int64]:
    starts = np.array([region.offset], dtype=np.int64)
    if not region.contiguous:
        for count, stride in region.steps:
            starts = (starts[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
    return starts


def _length(region: Region) -> int:
    return region.nbytes if region.contiguous else region.run


def _periodic(regions: Sequence[Region], start: int, stop: int) -> tuple[int, int] | None:
    """Return (count, stride) when all regions repeat alike over the whole range, as the parts of a row split do."""
    steps = {region.steps for region in regions}
    if len(steps) != 1:
        return None
    (only,) = steps
    if len(only) != 1 or only[0][0] * only[0][1] != stop - start:
        return None
    return only[0]


def _one_period(regions: Sequence[Region], start: int, stop: int) -> Sequence[Region]:
    """Return the first repetition of periodic regions: it says all, and a large matrix has thousands of rows."""
    if _periodic(regions, start, stop) is None:
        return regions
    return [Region(region.offset, region.run) for region in regions]


def _period_end(regions: Sequence[Region], start: int, stop: int) -> int:
    period = _periodic(regions, start, stop)
    return stop if period is None else start + period[1]
