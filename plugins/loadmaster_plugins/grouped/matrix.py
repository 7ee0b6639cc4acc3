"""A rank's part of a matrix of codes with scales and zero points, decoded a tile of rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadmaster_hookspecs.quantization import Affine
from loadmaster_plugins.grouped.columns import Grouping

if TYPE_CHECKING:
    import torch

Rows = Callable[[int, int], "torch.Tensor"]
"""Returns something about the rows `start` to `stop` that the rank owns, a row each."""


@dataclass(frozen=True)
class GroupedMatrix:
    """Weights `(code - zero) * scale` over views of the arena.

    `codes` gives uint8 [rows, columns], `scales` float [rows, stored groups], `zeros` the zero points in a type that converts
    to the scales' exactly, [rows, stored groups]. All are about what the rank owns: `rows` x `columns` of `shape`, the rest of
    which is padding and decodes to zeros. `words` is as in `Affine`, for matrices that lie so.
    """

    shape: tuple[int, int]
    rows: int
    columns: int
    bits: int
    codes: Rows
    scales: Rows
    zeros: Rows
    grouping: Grouping
    words: torch.Tensor | None = None

    def weight(self, start: int, stop: int) -> torch.Tensor:
        """Return rows `start` to `stop` in the scales' type.

        Difference and product are exact in float32 for integer zero points and half-precision scales, and the product is
        rounded once: the same bits as auto-gptq's `QuantLinear.forward` and autoawq's `dequantize_gemm`, which compute in half
        precision.
        """
        import torch

        first, last = min(start, self.rows), min(stop, self.rows)
        scales = self.scales(first, last)
        factors = self.grouping.gather(scales.float()).unsqueeze(-1)
        zeros = self.grouping.gather(self.zeros(first, last).float()).unsqueeze(-1)
        weights = self.codes(first, last).to(torch.float32, memory_format=torch.contiguous_format)
        weights.view(last - first, self.grouping.groups, self.grouping.size or 1).sub_(zeros).mul_(factors)
        return padded(weights.to(scales.dtype), stop - start, self.shape[1])

    def affine(self) -> Affine | None:
        """Return codes, scales and zeros [groups, out] where groups lie together and padding keeps to their borders."""
        size = self.grouping.size
        if not size or self.shape[1] % size:
            return None
        groups = self.shape[1] // size
        scales = self.grouping.gather(self.scales(0, self.rows))
        zeros = self.grouping.gather(self.zeros(0, self.rows)).to(scales.dtype)
        scales, zeros = (padded(values, self.shape[0], groups).t() for values in (scales, zeros))
        return Affine(self.bits, size, self._padded_codes, scales, zeros, self.words)

    def _padded_codes(self, start: int, stop: int) -> torch.Tensor:
        codes = self.codes(min(start, self.rows), min(stop, self.rows))
        return padded(codes, stop - start, self.shape[1])


def padded(values: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Append zeros to rows and columns."""
    from torch.nn.functional import pad

    if values.shape == (rows, columns):
        return values
    return pad(values, (0, columns - values.shape[1], 0, rows - values.shape[0]))
