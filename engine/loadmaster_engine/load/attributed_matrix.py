"""A quantizer's matrix as kernels and modules use it: what goes wrong inside it names the quantizer, not who asked."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.quantization import Affine, Matrix, PackedMatrix, Quantizer

if TYPE_CHECKING:
    import torch


class AttributedMatrix:
    """A rank's part of a matrix, with shapes checked against the plan.

    `value` is what the quantizer returned. Raises ValueError when it is no matrix of the planned shape.
    """

    def __init__(self, host: PluginHost, quantizer: Quantizer, part: PackedMatrix, value: Matrix) -> None:
        self.shape = (part.rows, part.columns)
        if tuple(value.shape) != self.shape:
            raise ValueError(f"returned a matrix of shape {list(value.shape)}, the plan has {list(self.shape)}")
        self._host, self._quantizer, self._path, self._value = host, quantizer, part.path, value

    def weight(self, start: int, stop: int) -> torch.Tensor:
        """Return rows of the matrix."""
        with self._attributed("weight"):
            rows = self._value.weight(start, stop)
            if rows.shape != (stop - start, self.shape[1]):
                raise ValueError(f"returned {list(rows.shape)} for {stop - start} rows of {self.shape[1]} columns")
            return rows

    def affine(self) -> Affine | None:
        """Return codes, scales and zeros, if the matrix has them."""
        with self._attributed("affine"):
            found = self._value.affine()
            if found is not None:
                _check(found, self.shape)
            return found

    def _attributed(self, call: str) -> AbstractContextManager[None]:
        return self._host.attributed(self._quantizer, f"{call} of a matrix of quantizer {self._quantizer.name}, {self._path}")


def _check(affine: Affine, shape: tuple[int, int]) -> None:
    """Raise ValueError where scales or zeros are not one for each group and row."""
    rows, columns = shape
    if affine.group_size < 1 or columns % affine.group_size:
        raise ValueError(f"has groups of {affine.group_size} columns, which {columns} columns are no multiple of")
    expected = (columns // affine.group_size, rows)
    for name, values in (("scales", affine.scales), ("zeros", affine.zeros)):
        if values.shape != expected:
            raise ValueError(f"{name} are {list(values.shape)}, expected {list(expected)}: groups of {affine.group_size}")
