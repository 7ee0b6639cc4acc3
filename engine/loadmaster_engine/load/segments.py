"""Matrices that lie one below the other in one parameter although each was quantised on its own: gate and up of an expert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec
import torch

from loadmaster_engine.load.attributed_matrix import AttributedMatrix
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.quantization import Affine, Matrix, PackedMatrix
from loadmaster_hookspecs.sharding import Interval


class Joined:
    """The rows of several matrices, one after the other."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self._matrices = matrices
        self._starts = [0, *accumulate(matrix.shape[0] for matrix in matrices)]
        self.shape = (self._starts[-1], matrices[0].shape[1])

    def weight(self, start: int, stop: int) -> torch.Tensor:
        """Return rows `start` to `stop`, from every matrix that has some of them."""
        parts = []
        for matrix, low, high in zip(self._matrices, self._starts, self._starts[1:], strict=False):
            first, last = max(start, low), min(stop, high)
            if first < last:
                parts.append(matrix.weight(first - low, last - low))
        return torch.cat(parts) if parts else self._matrices[0].weight(0, 0)

    def affine(self) -> Affine | None:
        """Return None: the groups of one matrix are not those of another."""
        return None


def open_matrix(host: PluginHost, part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> Matrix:
    """Return a rank's part of one matrix, or of several that lie one below the other."""
    quantizer = host.quantizer(part.quantizer)
    with host.attributed(quantizer, f"matrix of quantizer {part.quantizer} for {part.path}"):
        if not part.segments:
            return AttributedMatrix(host, quantizer, part, quantizer.matrix(part, tensors))
        segments = _segments(part, tensors)
        return Joined([AttributedMatrix(host, quantizer, own, quantizer.matrix(own, held)) for own, held in segments])


def _segments(
    part: PackedMatrix, tensors: Mapping[str, torch.Tensor]
) -> Iterator[tuple[PackedMatrix, dict[str, torch.Tensor]]]:
    """Yield the rank's part of every segment. Padding, if any, lies behind the last one and belongs to none."""
    for number, (low, high) in enumerate(pairwise(part.segments)):
        own = tuple(
            Interval(max(side.start, low) - low, min(side.stop, high) - low)
            for side in part.out
            if side.start < high and side.stop > low
        )
        held = {layout.name: _rows(layout, tensors[layout.name], part.out, low, own, number) for layout in part.layouts}
        rows = sum(interval.size for interval in own)
        yield msgspec.structs.replace(part, out=own, rows=rows, segments=()), held


def _rows(
    layout: TensorLayout, tensor: torch.Tensor, out: Sequence[Interval], low: int, own: Sequence[Interval], number: int
) -> torch.Tensor:
    """Return the part of a tensor that belongs to segment `number`, which begins at row `low` of the whole matrix."""
    for dim, along in enumerate(layout.dims):
        if along.axis == "out":
            before = [along.stored(side.start, min(side.stop, low)) for side in out if side.start < low]
            inside = [along.stored(side.start, side.stop) for side in own]
            start, length = (sum(last - first for first, last in spans) for spans in (before, inside))
            return tensor.narrow(dim, start, length)
    return tensor[number]
