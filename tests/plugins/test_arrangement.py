"""Arithmetic on arrangements against numpy: the pieces of any chain of operations copy what the operations would compute."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster_plugins.transformers_models.arrangement import Arranged, cut, join, split, stack, stored, transpose

Array = npt.NDArray[np.int64]


def assemble(arranged: Arranged, files: dict[str, Array]) -> Array:
    """Copy every part to its place in an array that is full of -1."""
    result = np.full(arranged.shape, -1)
    for piece in arranged.pieces():
        box = files[piece.tensor][tuple(slice(a, a + n) for a, n in zip(piece.start, piece.extent, strict=True))]
        sizes = dict(zip(piece.dims, piece.extent, strict=True))
        place = tuple(slice(begin, begin + sizes.get(dim, 1)) for dim, begin in enumerate(piece.at))
        order = sorted(range(len(piece.dims)), key=lambda index: piece.dims[index])
        shape = [sizes.get(dim, 1) for dim in range(len(arranged.shape))]
        assert (result[place] == -1).all()
        result[place] = box.transpose(order).reshape(shape)
    return result


@st.composite
def chains(draw: st.DrawFn) -> tuple[Arranged, Array, dict[str, Array]]:
    """A few random operations on a few stored tensors, and what numpy makes of them."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    count = draw(st.integers(1, 3))
    files = {f"t{i}": np.arange(np.prod(shape)).reshape(shape) + 1000 * i for i in range(count)}
    arranged = [stored(name, shape) for name in files]
    arrays = list(files.values())
    dim = draw(st.integers(0, len(shape)))
    if dim < len(shape) and draw(st.booleans()):
        now, array = join(arranged, dim), np.concatenate(arrays, axis=dim)
    else:
        now, array = stack(arranged, dim), np.stack(arrays, axis=dim)
    for _ in range(draw(st.integers(0, 4))):
        axis = draw(st.integers(0, array.ndim - 1))
        other = draw(st.integers(0, array.ndim - 1))
        if draw(st.booleans()):
            now, array = transpose(now, axis, other), np.swapaxes(array, axis, other)
        else:
            start = draw(st.integers(0, array.shape[axis] - 1))
            stop = draw(st.integers(start + 1, array.shape[axis]))
            now, array = cut(now, axis, start, stop), np.take(array, range(start, stop), axis=axis)
    return now, array, files


@given(chains())
def test_any_chain_of_operations_equals_numpy(case: tuple[Arranged, Array, dict[str, Array]]) -> None:
    arranged, expected, files = case
    assert arranged.shape == expected.shape
    np.testing.assert_array_equal(assemble(arranged, files), expected)


def test_shapes_that_do_not_fit_are_refused_with_the_shapes() -> None:
    with pytest.raises(ValueError, match=r"stacked: \[2, 3\], \[2, 4\]"):
        stack([stored("a", (2, 3)), stored("b", (2, 4))], 0)
    with pytest.raises(ValueError, match=r"joined along dimension 0: \[2, 3\], \[2, 4\]"):
        join([stored("a", (2, 3)), stored("b", (2, 4))], 0)
    with pytest.raises(ValueError, match=r"parts of \[1, 2\] do not make dimension 0"):
        split(stored("a", (4,)), 0, [1, 2])
