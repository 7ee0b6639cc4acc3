"""Arithmetic on tensors that nobody has loaded: a tensor is a shape and the boxes of stored tensors that it is made of.

Stacking, joining, cutting and transposing change numbers only. What comes out are the pieces that a plan copies straight from
the file to their place, so no rearrangement ever needs a temporary tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from loadmaster_hookspecs.models import Piece


class Part(NamedTuple):
    """A box of a stored tensor: `start` and `extent` in its own dimensions, `at` where it begins in the arranged tensor.

    `dims[j]` is the dimension of the arranged tensor that the stored dimension `j` runs along.
    """

    tensor: str
    start: tuple[int, ...]
    extent: tuple[int, ...]
    at: tuple[int, ...]
    dims: tuple[int, ...]


class Arranged(NamedTuple):
    """A tensor of `shape` that consists of `parts`."""

    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    def pieces(self) -> tuple[Piece, ...]:
        """Return the parts as the plan's pieces."""
        return tuple(Piece(tensor=p.tensor, start=p.start, extent=p.extent, at=p.at, dims=p.dims) for p in self.parts)


def stored(name: str, shape: Sequence[int]) -> Arranged:
    """Return a stored tensor as it is."""
    origin = (0,) * len(shape)
    return Arranged(tuple(shape), (Part(name, origin, tuple(shape), origin, tuple(range(len(shape)))),))


def stack(tensors: Sequence[Arranged], dim: int) -> Arranged:
    """Return tensors of one shape stacked along a new dimension. Raises ValueError for different shapes."""
    shape = tensors[0].shape
    dim %= len(shape) + 1
    if any(tensor.shape != shape for tensor in tensors):
        raise ValueError(f"tensors of different shapes are stacked: {_shapes(tensors)}")
    parts = [
        part._replace(at=(*part.at[:dim], number, *part.at[dim:]), dims=tuple(d + 1 if d >= dim else d for d in part.dims))
        for number, tensor in enumerate(tensors)
        for part in tensor.parts
    ]
    return Arranged((*shape[:dim], len(tensors), *shape[dim:]), tuple(parts))


def join(tensors: Sequence[Arranged], dim: int) -> Arranged:
    """Return tensors joined along an existing dimension. Raises ValueError where the others differ."""
    dim %= len(tensors[0].shape)
    if len({(*tensor.shape[:dim], *tensor.shape[dim + 1 :]) for tensor in tensors}) > 1:
        raise ValueError(f"tensors of different shapes are joined along dimension {dim}: {_shapes(tensors)}")
    parts: list[Part] = []
    offset = 0
    for tensor in tensors:
        parts += (part._replace(at=_set(part.at, dim, part.at[dim] + offset)) for part in tensor.parts)
        offset += tensor.shape[dim]
    return Arranged(_set(tensors[0].shape, dim, offset), tuple(parts))


def cut(tensor: Arranged, dim: int, start: int, stop: int) -> Arranged:
    """Return the part `[start, stop)` of a tensor along `dim`."""
    dim %= len(tensor.shape)
    parts = [kept for part in tensor.parts if (kept := _cut_part(part, dim, start, stop)) is not None]
    return Arranged(_set(tensor.shape, dim, stop - start), tuple(parts))


def split(tensor: Arranged, dim: int, sizes: Sequence[int]) -> list[Arranged]:
    """Return consecutive parts of the given sizes. Raises ValueError when they are not the whole tensor."""
    if sum(sizes) != tensor.shape[dim]:
        raise ValueError(f"parts of {list(sizes)} do not make dimension {dim} of shape {list(tensor.shape)}")
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [cut(tensor, dim, end - size, end) for end, size in zip(ends, sizes, strict=True)]


def transpose(tensor: Arranged, first: int, second: int) -> Arranged:
    """Return the tensor with two dimensions exchanged."""
    order = list(range(len(tensor.shape)))
    order[first], order[second] = order[second], order[first]
    parts = [
        part._replace(at=tuple(part.at[d] for d in order), dims=tuple(order.index(d) for d in part.dims))
        for part in tensor.parts
    ]
    return Arranged(tuple(tensor.shape[d] for d in order), tuple(parts))


def _cut_part(part: Part, dim: int, start: int, stop: int) -> Part | None:
    """Return the part of `part` that lies in `[start, stop)`, moved to where that interval begins; None for no common part."""
    along = part.dims.index(dim) if dim in part.dims else None
    begin, size = part.at[dim], 1 if along is None else part.extent[along]
    low, high = max(begin, start), min(begin + size, stop)
    if low >= high:
        return None
    moved = part._replace(at=_set(part.at, dim, low - start))
    if along is None:
        return moved
    return moved._replace(
        start=_set(part.start, along, part.start[along] + low - begin), extent=_set(part.extent, along, high - low)
    )


def _set(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _shapes(tensors: Sequence[Arranged]) -> str:
    return ", ".join(str(list(shape)) for shape in dict.fromkeys(tensor.shape for tensor in tensors))
