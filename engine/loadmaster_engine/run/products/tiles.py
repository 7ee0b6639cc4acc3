"""The form in which a processor that multiplies bfloat16 wants a matrix.

A plain product puts a matrix into tiles every time, which takes as long as the product itself when there are few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from loadmaster_engine.run.products.row_counts import padded

if TYPE_CHECKING:
    import torch

ROWS: Final = 32
"""Rows that the tiles are made for. The library chooses another order for one row, which is slower for many (measured)."""


class Tiles:
    """Some matrices [out, in] below each other, and their biases, in tiles. Owns `nbytes` of memory at `address`."""

    def __init__(self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None) -> None:
        import torch

        self.nbytes = sum(weight.numel() * weight.element_size() for weight in weights)
        self._bias = bias
        self._tiles = torch.ops.mkldnn._reorder_linear_weight(
            torch.cat(list(weights)) if len(weights) > 1 else weights[0], ROWS
        )
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self.address = int(torch.ops.mkldnn.data_ptr(self._tiles))

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product [..., out] with `rows` [..., in], accumulated in float32 and rounded once."""
        flat = rows.reshape(-1, rows.shape[-1])
        result: torch.Tensor = self._product(padded(flat), self._tiles, self._bias, "none", [], "")
        return result[: len(flat)].view(*rows.shape[:-1], result.shape[-1])
