"""The byte proofs find every hole and every overlap."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster_engine.plan.coverage import tiling_fault
from loadmaster_hookspecs.plan import Region


def test_column_and_row_splits_tile() -> None:
    assert tiling_fault([Region(0, 8), Region(8, 24)], 0, 32) is None
    assert tiling_fault([Region(0, 6, ((4, 16),)), Region(6, 10, ((4, 16),))], 0, 64) is None
    assert tiling_fault([Region(0, 16, ((4, 16),))], 0, 64) is None


@pytest.mark.parametrize(
    ("regions", "fault"),
    [
        ([Region(0, 8), Region(9, 23)], ("hole", 8)),
        ([Region(0, 8), Region(7, 25)], ("overlap", 7)),
        ([Region(1, 31)], ("hole", 0)),
        ([Region(0, 31)], ("hole", 31)),
        ([], ("hole", 0)),
        ([Region(0, 33)], ("overlap", 32)),
        ([Region(0, 6, ((2, 16),)), Region(7, 9, ((2, 16),))], ("hole", 6)),
        ([Region(0, 6, ((2, 16),)), Region(6, 9, ((2, 16),))], ("hole", 15)),
        ([Region(0, 6, ((2, 16),)), Region(6, 11, ((2, 16),))], ("overlap", 16)),
    ],
)
def test_faults_are_named_with_their_byte(regions: list[Region], fault: tuple[str, int]) -> None:
    assert tiling_fault(regions, 0, 32) == fault


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5), st.integers(1, 4), st.integers(5, 9)), max_size=4))
@settings(max_examples=200, deadline=None)
def test_the_verdict_is_that_of_counting_every_byte(rows: list[tuple[int, int, int, int]]) -> None:
    regions = [Region(offset, run, ((count, stride),)) for offset, run, count, stride in rows]
    touched = [
        offset + step * stride + byte for offset, run, count, stride in rows for step in range(count) for byte in range(run)
    ]
    start, stop = min(touched, default=0), max(touched, default=0) + 1
    assert (tiling_fault(regions, start, stop) is None) == (sorted(touched) == list(range(start, stop)))
