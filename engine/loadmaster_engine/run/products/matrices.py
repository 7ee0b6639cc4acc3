"""The forms in which a matrix is kept a second time, because the processor multiplies by them faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from loadmaster_engine.run.products.row_counts import padded

if TYPE_CHECKING:
    import torch

ROWS: Final = 32
"""Rows that tiles are made for. The library chooses another order for one row, which is slower for many (measured)."""


class Matrix(Protocol):
    """Some matrices [out, in] below each other, and their biases. Owns `nbytes` of memory at `address`."""

    address: int
    nbytes: int

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product [..., out] with `rows` [..., in], in their element type."""
        ...


class Tiles:
    """bfloat16 in the order in which a processor that multiplies bfloat16 wants it.

    A plain product puts a matrix into this order every time, which takes as long as the product itself when there are few rows.
    """

    def __init__(self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None) -> None:
        import torch

        self.nbytes = _nbytes(weights)
        self._bias = bias
        self._tiles = torch.ops.mkldnn._reorder_linear_weight(_joined(weights), ROWS)
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self.address = int(torch.ops.mkldnn.data_ptr(self._tiles))

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product, accumulated in float32 and rounded once."""
        flat = rows.reshape(-1, rows.shape[-1])
        result: torch.Tensor = self._product(padded(flat), self._tiles, self._bias, "none", [], "")
        return result[: len(flat)].view(*rows.shape[:-1], result.shape[-1])


class Widened:
    """float32, for a processor that does not multiply the narrow type, or does it several times slower."""

    def __init__(self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None) -> None:
        import torch

        self._weight = _joined([weight.float() for weight in weights])
        self._bias = None if bias is None else bias.float()
        self._linear = torch.nn.functional.linear
        self.nbytes = _nbytes([self._weight])
        self.address = self._weight.data_ptr()

    def multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product, computed in float32 and rounded once."""
        return self._linear(rows.float(), self._weight, self._bias).to(rows.dtype)


def matrix(weights: Sequence[torch.Tensor], bias: torch.Tensor | None, size: int) -> Matrix:
    """Return matrices of one narrow element type in the form that takes `size` bytes for each of theirs."""
    return Tiles(weights, bias) if size == 1 else Widened(weights, bias)


def _joined(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.cat(list(weights)) if len(weights) > 1 else weights[0]


def _nbytes(weights: Sequence[torch.Tensor]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)
