"""Box copies as byte regions, against numpy's own slicing."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster_engine.load.regions import as_array, chunks
from loadmaster_engine.plan.boxes import canonical, copy_regions, intersect, strides, volume, whole
from loadmaster_hookspecs.plan import Region


@st.composite
def sub_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """An array shape and a non-empty box inside it."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=0, max_size=4)))
    box = []
    for extent in shape:
        start = draw(st.integers(0, extent - 1))
        box.append((start, draw(st.integers(start + 1, extent))))
    return shape, tuple(box)


@given(sub_boxes(), st.sampled_from([1, 2, 4]), st.data())
@settings(max_examples=200, deadline=None)
def test_copying_a_box_equals_slicing(
    case: tuple[tuple[int, ...], tuple[tuple[int, int], ...]], size: int, data: st.DataObject
) -> None:
    shape, box = case
    extents = tuple(stop - start for start, stop in box)
    pads = tuple(data.draw(st.integers(0, 2)) for _ in shape)
    dest_shape = tuple(extent + pad for extent, pad in zip(extents, pads, strict=True))
    array = np.arange(prod(shape) * size, dtype=np.uint8).reshape(*shape, size)
    start = sum(low * step for (low, _), step in zip(box, strides(shape), strict=True)) * size
    source, dest = copy_regions(extents, (start, strides(shape), size), (0, strides(dest_shape), size))
    out = np.zeros((*dest_shape, size), dtype=np.uint8)
    for part, target in chunks(source, dest, data.draw(st.integers(1, 40))):
        as_array(out.reshape(-1).data, target)[...] = as_array(memoryview(array.tobytes()), part)
    expected = np.zeros_like(out)
    expected[tuple(slice(0, extent) for extent in extents)] = array[tuple(slice(a, b) for a, b in box)]
    np.testing.assert_array_equal(out, expected)
    assert source.nbytes == volume(box) * size


def test_tight_loops_become_one_run() -> None:
    rows = copy_regions((4, 8), (160, (8, 1), 2), (0, (8, 1), 2))
    assert rows == (Region(160, 64), Region(0, 64))


def test_a_row_split_keeps_one_loop() -> None:
    source, dest = copy_regions((4, 3), (6, (8, 1), 2), (0, (3, 1), 2))
    assert source == Region(6, 6, ((4, 16),))
    assert dest == Region(0, 6, ((4, 6),))
    assert dest.contiguous
    assert not source.contiguous
    assert (source.nbytes, source.runs, source.end) == (24, 4, 60)


def test_equal_sets_of_runs_have_one_form() -> None:
    assert canonical(Region(5, 1, ((2, 1),))) == canonical(Region(5, 2)) == Region(5, 2)
    assert canonical(Region(0, 2, ((3, 8), (2, 2)))) == Region(0, 4, ((3, 8),))
    assert canonical(Region(0, 2, ((3, 8), (4, 2)))) == Region(0, 24)


def test_boxes_meet_or_do_not() -> None:
    assert intersect(((0, 4), (2, 6)), ((3, 9), (0, 3))) == ((3, 4), (2, 3))
    assert intersect(((0, 4),), ((4, 5),)) is None
    assert intersect((), ()) == ()
    assert whole((2, 3)) == ((0, 2), (0, 3))
