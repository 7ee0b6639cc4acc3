"""The ranges that the floor reads: those of a loadmaster plan for one rank or two, as plain numbers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import loadmaster
from loadmaster_hookspecs.plan import RankPlan, Region

Read = tuple[int, int, int]
"""File number, offset and length in bytes."""


def write_ranges(model: Path, target: Path) -> None:
    """Write the ranges of a copying plan at TP 2, run by run (`planned`) and as one range per operation (`contiguous`).

    `planned-tp1` are the runs of the plan for one rank.
    """
    plan = loadmaster.plan(model, tensor_parallel=2, read_mode="direct").data
    single = loadmaster.plan(model, read_mode="direct").data
    document = {
        "files": [str(model / file.name) for file in plan.files],
        "planned-tp1": [list(_planned(rank)) for rank in single.ranks],
        "planned": [list(_planned(rank)) for rank in plan.ranks],
        "contiguous": [[(op.file, op.source.offset, op.source.nbytes) for op in rank.reads] for rank in plan.ranks],
    }
    target.write_text(json.dumps(document))


def runs(region: Region) -> Iterator[tuple[int, int]]:
    """Yield offset and length of every run of a region, in order; a region without gaps is one."""
    if region.contiguous:
        yield region.offset, region.nbytes
        return
    steps = [range(0, count * stride, stride) for count, stride in region.steps]
    for jumps in itertools.product(*steps):
        yield region.offset + sum(jumps), region.run


def _planned(rank: RankPlan) -> Iterator[Read]:
    """Yield a rank's reads. Ranges that follow one another are one, as a careful reader would have it."""
    pending: Read | None = None
    for op in rank.reads:
        for offset, length in runs(op.source):
            if pending and (pending[0], pending[1] + pending[2]) == (op.file, offset):
                pending = (pending[0], pending[1], pending[2] + length)
                continue
            if pending:
                yield pending
            pending = (op.file, offset, length)
    if pending:
        yield pending
