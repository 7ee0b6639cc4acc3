"""Where a rank finds its elements in packed words, against words whose elements carry their own number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmaster_hookspecs.layout import AxisMap
from loadmaster_hookspecs.sharding import Interval


@given(
    st.sampled_from(
        [AxisMap(axis="in", per=8), AxisMap(axis="in", per=32, words=3), AxisMap(axis="in"), AxisMap(axis="in", per=5)]
    ),
    st.lists(st.integers(0, 200), min_size=2, max_size=8, unique=True),
)
def test_kept_and_indices_find_every_owned_element(axis: AxisMap, points: list[int]) -> None:
    owned = [Interval(a, b) for a, b in zip(sorted(points)[::2], sorted(points)[1::2], strict=False)]
    local: list[int] = []
    words: list[int] = []
    for interval in owned:
        low, high = axis.stored(interval.start, interval.stop)
        local += range(low // axis.words * axis.per, high // axis.words * axis.per)
        words += range(low // axis.words, high // axis.words)
    elements = [element for interval in owned for element in range(interval.start, interval.stop)]
    assert [local[place] for low, high in axis.kept(owned) for place in range(low, high)] == elements
    assert [words[index] for index in axis.indices(owned)] == [element // axis.per for element in elements]


def test_neighbours_in_the_same_words_are_one_run() -> None:
    assert AxisMap(axis="in", per=8).kept([Interval(3, 8), Interval(8, 20)]) == [(3, 20)]
