"""Hypothesis strategies for quantised matrices and for the parts of them that ranks own."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from quantized_files import Part

Runs = list[tuple[int, int]]


@st.composite
def rank_runs(draw: st.DrawFn, length: int) -> list[Runs]:
    """Return what up to four ranks own of an axis: everything once, in parts of any size, each in up to two runs."""
    ranks = draw(st.integers(1, 4))
    points = sorted(draw(st.lists(st.integers(0, length), min_size=2 * ranks - 1, max_size=2 * ranks - 1)))
    runs = list(pairwise([0, *points, length]))
    return [[run for run in (runs[rank], runs[ranks + rank]) if run[0] < run[1]] or [(0, 0)] for rank in range(ranks)]


@st.composite
def row_and_column_parts(draw: st.DrawFn, out: int, columns: int) -> list[Part]:
    """Return parts that cut rows, columns or both, some with padding."""
    rows = draw(rank_runs(out)) if draw(st.booleans()) else [[(0, out)]]
    inner = draw(rank_runs(columns)) if draw(st.booleans()) else [[(0, columns)]]
    more = st.sampled_from([0, 0, 32])
    return [Part(a, b, draw(more), draw(more)) for a in rows for b in inner]
