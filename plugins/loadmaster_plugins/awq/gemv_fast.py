"""The layout gemv_fast: four rows interleaved, 64 columns at a time, and zero points multiplied out.

Source: `pack_intweight` and `WQLinear_GEMVFast.from_linear` of autoawq 0.2.9. In a block of 4 rows and 64 columns,
16-bit word `w` holds four values of row `w // 16`, and every 32 columns of a row are in an order of their own. `qzeros` is
`-zero * scale`, so that a weight is `code * scale + qzero`. Groups are not cut: every rank keeps those of all columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.quantization import Affine, Claim, PackedMatrix
from loadmaster_plugins.awq.sizes import NIBBLES, AwqSize, roomy_group_size
from loadmaster_plugins.grouped.bits import as_bytes
from loadmaster_plugins.grouped.columns import Grouping, consecutive
from loadmaster_plugins.grouped.evidence import Evidence
from loadmaster_plugins.grouped.matrix import padded
from loadmaster_plugins.grouped.runs import Run, clip, pick

if TYPE_CHECKING:
    import torch

INTERLEAVED, BLOCK = 4, 64
ROWS = AxisMap(axis="out", per=INTERLEAVED, hard=False)
COLUMNS = AxisMap(axis="in", per=BLOCK, words=BLOCK, hard=False)


def judge(evidence: Evidence, said: int | None) -> AwqSize:
    """Return the sizes. Raises IntegrityError for zero points of another shape or type, or groups of no size."""
    (_, columns), (room, rows) = (evidence.tensor(suffix).shape for suffix in ("qweight", "scales"))
    evidence.of_type("qzeros", frozenset({evidence.tensor("scales").dtype}))
    evidence.shaped("qzeros", (room, rows), f"scales {[room, rows]}")
    if columns % BLOCK:
        raise evidence.fault(
            "SHAPE", "qweight", "a tensor has the wrong shape", f"{columns} columns are no multiple of {BLOCK}"
        )
    return AwqSize(rows, columns, roomy_group_size(evidence, columns, -(-room // NIBBLES), said))


def layouts(claim: Claim) -> tuple[TensorLayout, ...]:
    """Return the layouts of `qweight`, `scales` and `qzeros`."""
    room = (AxisMap(axis="group", hard=False), AxisMap(axis="out", hard=False))
    return (
        TensorLayout(name="qweight", dims=(ROWS, COLUMNS), dtype="I16", role="quantised"),
        TensorLayout(name="scales", dims=room, dtype=claim.dtype, role="scales"),
        TensorLayout(name="qzeros", dims=room, dtype=claim.dtype, role="scales"),
    )


def decoded(part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> FastMatrix:
    """Return the matrix over a rank's tensors. Nothing is unpacked before it is asked for."""
    return FastMatrix(
        shape=(part.rows, part.columns),
        rows=sum(interval.size for interval in part.out),
        qweight=tensors["qweight"],
        scales=tensors["scales"],
        offsets=tensors["qzeros"],
        grouping=consecutive(part.inner, part.group_size, held_whole=True, device=tensors["scales"].device),
        kept_rows=tuple(ROWS.kept(part.out)),
        kept_columns=tuple(COLUMNS.kept(part.inner)),
    )


@dataclass(frozen=True)
class FastMatrix:
    """Weights `code * scale + offset` over views of the arena."""

    shape: tuple[int, int]
    rows: int
    qweight: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor
    grouping: Grouping
    kept_rows: tuple[Run, ...]
    kept_columns: tuple[Run, ...]

    def weight(self, start: int, stop: int) -> torch.Tensor:
        """Return rows `start` to `stop` in the scales' type, rounded once as the kernel's fused multiply-add does."""
        first, last = min(start, self.rows), min(stop, self.rows)
        scales, offsets = (
            self.grouping.gather(values[:, first:last].t()).float().unsqueeze(-1) for values in (self.scales, self.offsets)
        )
        weights = self._codes(first, last).float()
        blocks = weights.view(last - first, self.grouping.groups, self.grouping.size or 1)
        blocks.mul_(scales).add_(offsets)
        return padded(weights.to(self.scales.dtype), stop - start, self.shape[1])

    def affine(self) -> Affine | None:
        """Return None: the zero points are not in the file, and `offset / scale` is not exact."""
        return None

    def _codes(self, start: int, stop: int) -> torch.Tensor:
        """Return uint8 [rows, columns]."""
        rows = clip(self.kept_rows, start, stop)
        return pick(rows, INTERLEAVED, lambda first, last: self._columns(self.qweight[first:last]), 0)

    def _columns(self, words: torch.Tensor) -> torch.Tensor:
        return pick(self.kept_columns, BLOCK, lambda first, last: unpack_blocks(words[:, first * BLOCK : last * BLOCK]), 1)


def unpack_blocks(words: torch.Tensor) -> torch.Tensor:
    """Return codes from whole blocks: int16 [rows / 4, columns] to uint8 [rows, columns].

    Within 32 columns, the nibble at place `8 * a + 4 * b + c` (`a`, `c` below 4, `b` below 2) is column `8 * c + 2 * a + b`.
    """
    import torch

    quads, columns = words.shape
    data = as_bytes(words).view(quads, columns // BLOCK, INTERLEAVED, 2, 16)
    nibbles = torch.stack((data & 15, data >> 4), -1).view(quads, columns // BLOCK, INTERLEAVED, 2, 4, 2, 4)
    return nibbles.permute(0, 2, 1, 3, 6, 4, 5).reshape(quads * INTERLEAVED, columns)
