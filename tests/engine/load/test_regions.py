"""Parts of strided regions: the same bytes in the same places, whatever is cut, and no gap inside a part that is too wide."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster_engine.load.regions import as_array, clusters, tight
from loadmaster_hookspecs.plan import Region


@st.composite
def regions(draw: st.DrawFn) -> Region:
    run = draw(st.integers(1, 5))
    steps: list[tuple[int, int]] = []
    span = run
    for _ in range(draw(st.integers(0, 3))):
        count, stride = draw(st.integers(2, 4)), span + draw(st.integers(0, 12))
        steps.insert(0, (count, stride))
        span += (count - 1) * stride
    return Region(draw(st.integers(0, 9)), run, tuple(steps))


@given(regions(), st.integers(0, 20))
@settings(max_examples=300, deadline=None)
def test_clusters_move_every_byte_once_to_its_place(source: Region, gap: int) -> None:
    file = np.random.default_rng(0).integers(1, 255, source.end, dtype=np.uint8)
    expected = as_array(file.data, source).ravel()
    out = np.zeros(source.nbytes, dtype=np.uint8)
    parts = list(clusters(source, tight(source), gap))
    for part, place in parts:
        target = as_array(out.data, place)
        assert not target.any()
        target[...] = as_array(file.data, part)
        span = part.run
        for count, stride in reversed(part.steps):
            assert stride - span <= gap
            span += (count - 1) * stride
    np.testing.assert_array_equal(out, expected)


@given(regions())
@settings(max_examples=100, deadline=None)
def test_a_gap_as_wide_as_the_region_makes_one_part(source: Region) -> None:
    assert list(clusters(source, source, source.end)) == [(source, source)]
    assert tight(source).contiguous
    assert tight(source).nbytes == source.nbytes
