"""The kernel for every matrix: decode some rows, multiply with them, forget them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.quantization import Matrix, MatrixFacts, Suitability
from loadmaster_plugins.kernels.tiles import tiles

if TYPE_CHECKING:
    import torch


class Dequant:
    """Decodes rows of the matrix in the activations' type, tile by tile. Any bits, group, order of columns, stack and cut."""

    name = "dequant"

    def judge(self, facts: MatrixFacts) -> Suitability:
        """Suits everything, and is the choice where nothing better does."""
        return Suitability(score=0.1, reason="decodes any matrix tile by tile")

    def layouts(self, layouts: tuple[TensorLayout, ...], facts: MatrixFacts) -> tuple[TensorLayout, ...]:
        """Keep the tensors as the file has them."""
        return layouts

    def prepare(
        self, matrix: Matrix, tensors: Mapping[str, torch.Tensor], facts: MatrixFacts
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the product with `matrix`. Allocates nothing until it is called, then a tile and the result."""
        return lambda x: multiply_decoded(x, matrix)


def multiply_decoded(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """Return `x` [..., in] times the transpose of `matrix`, as [..., out] of the type of `x`.

    Every tile of weights is rounded to the type of `x`, as a plain linear layer of that type would hold it.
    """
    rows, columns = matrix.shape
    leading = x.shape[:-1]
    flat = x.reshape(math.prod(leading), columns)
    result = x.new_empty(flat.shape[0], rows)
    for start, stop in tiles(rows, columns):
        result[:, start:stop] = flat @ matrix.weight(start, stop).to(x.dtype).T
    return result.reshape(*leading, rows)
