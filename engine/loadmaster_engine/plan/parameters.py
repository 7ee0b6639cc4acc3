"""The parameters of one rank: local shapes, and the blocks of the full parameter that they consist of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import NamedTuple

from loadmaster_engine.plan.boxes import Box
from loadmaster_hookspecs.dtypes import itemsize
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import ModuleSpec
from loadmaster_hookspecs.sharding import Placement


class Block(NamedTuple):
    """A box of the full parameter, and the index in the rank's own parameter where it begins."""

    box: Box
    origin: tuple[int, ...]


class LocalTensor(NamedTuple):
    """One tensor of one module as one rank holds it.

    `zeros` tensors have no blocks, since another rank contributes them, and `computed` ones have none either.
    """

    name: str
    role: str
    layout: TensorLayout
    dtype: str
    full_shape: tuple[int, ...]
    shape: tuple[int, ...]
    blocks: tuple[Block, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the rank's arena."""
        return prod(self.shape) * itemsize(self.dtype)

    @property
    def filled(self) -> int:
        """Elements that stored tensors provide; the rest of `shape` is padding or zeros."""
        return sum(prod(stop - start for start, stop in block.box) for block in self.blocks)


def parameter_name(module: ModuleSpec, tensor: TensorLayout) -> str:
    """Return the dotted name of a tensor in the model."""
    return f"{module.path}.{tensor.name}" if module.path else tensor.name


def full_shape(module: ModuleSpec, tensor: TensorLayout) -> tuple[int, ...]:
    """Return the shape of a tensor in the undivided model."""
    return tuple(dim.extent(module.axes[dim.axis]) for dim in tensor.dims)


def localise(module: ModuleSpec, tensor: TensorLayout, placement: Placement, dtype: str) -> LocalTensor:
    """Return what one rank holds of a tensor whose module is placed by `placement`."""
    spans = [_spans(dim, module, placement) for dim in tensor.dims]
    shape = tuple(_local_extent(dim, module, placement, span) for dim, span in zip(tensor.dims, spans, strict=True))
    blocks = () if tensor.computed or tensor.name in placement.zeros else tuple(_blocks(spans))
    return LocalTensor(
        name=parameter_name(module, tensor),
        role=tensor.role or module.kind,
        layout=tensor,
        dtype=dtype,
        full_shape=full_shape(module, tensor),
        shape=shape,
        blocks=blocks,
    )


def _spans(dim: AxisMap, module: ModuleSpec, placement: Placement) -> list[tuple[int, int]]:
    """Return the stored intervals of one dimension that the rank owns."""
    owned = placement.owns.get(dim.axis)
    if owned is None:
        return [(0, dim.extent(module.axes[dim.axis]))]
    return [dim.stored(interval.start, interval.stop) for interval in owned]


def _local_extent(dim: AxisMap, module: ModuleSpec, placement: Placement, spans: list[tuple[int, int]]) -> int:
    padding = placement.padding.get(dim.axis, 0)
    return sum(stop - start for start, stop in spans) + dim.words * (padding // dim.per)


def _blocks(spans: list[list[tuple[int, int]]]) -> Iterator[Block]:
    """Yield every combination of owned intervals with its place in the rank's own tensor. Empty ones are left out."""
    placed: list[list[tuple[int, int, int]]] = []
    for intervals in spans:
        begin, rows = 0, []
        for start, stop in intervals:
            rows.append((start, stop, begin))
            begin += stop - start
        placed.append(rows)
    for combination in product(*placed):
        if all(stop > start for start, stop, _ in combination):
            yield Block(tuple((start, stop) for start, stop, _ in combination), tuple(begin for *_, begin in combination))
