"""The algebra of axes against the plain meaning: unpack everything a rank holds, and look where its own elements are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmaster_hookspecs.layout import AxisMap
from loadmaster_hookspecs.sharding import Interval

POINTS = st.lists(st.integers(0, 300), min_size=2, max_size=8, unique=True).map(sorted)


def held(axis: AxisMap, owned: list[Interval]) -> list[int]:
    """Return the logical elements in the stored indices that a rank holds, in the order in which it holds them."""
    found: list[int] = []
    for interval in owned:
        first, last = axis.stored(interval.start, interval.stop)
        found += range(first // axis.words * axis.per, last // axis.words * axis.per)
    return found


@given(points=POINTS, per=st.integers(1, 40), words=st.integers(1, 3))
def test_kept_runs_are_the_owned_elements(points: list[int], per: int, words: int) -> None:
    axis = AxisMap(axis="in", per=per, words=words, hard=False)
    owned = [Interval(*pair) for pair in zip(points[::2], points[1::2], strict=False)]
    elements = held(axis, owned)
    kept = [elements[at] for low, high in axis.kept(owned) for at in range(low, high)]
    assert kept == [element for interval in owned for element in range(interval.start, interval.stop)]


@given(points=POINTS, per=st.integers(1, 40))
def test_indices_point_at_what_holds_each_element(points: list[int], per: int) -> None:
    axis = AxisMap(axis="in", per=per, hard=False)
    owned = [Interval(*pair) for pair in zip(points[::2], points[1::2], strict=False)]
    groups = [element // per for element in held(axis, owned)][::per]
    elements = [element for interval in owned for element in range(interval.start, interval.stop)]
    assert [groups[at] for at in axis.indices(owned)] == [element // per for element in elements]


def test_runs_that_follow_one_another_are_one() -> None:
    axis = AxisMap(axis="out", per=8, hard=False)
    assert axis.kept([Interval(0, 112), Interval(224, 336)]) == [(0, 224)]
    assert axis.kept([Interval(3, 8), Interval(8, 12)]) == [(3, 12)]
