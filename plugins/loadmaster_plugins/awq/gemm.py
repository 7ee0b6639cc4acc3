"""The layout gemm: rows packed eight to a word, groups of columns along dimension 0.

Source: `WQLinear_GEMM` and `dequantize_gemm` of autoawq 0.2.9. Zero points are stored as they are. Matrices without them are
symmetric around 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.quantization import Claim, PackedMatrix
from loadmaster_plugins.awq.nibbles import unpack_rows
from loadmaster_plugins.awq.settings import BITS
from loadmaster_plugins.awq.sizes import NIBBLES, AwqSize
from loadmaster_plugins.grouped.bits import turned
from loadmaster_plugins.grouped.columns import consecutive
from loadmaster_plugins.grouped.evidence import Evidence, group_size
from loadmaster_plugins.grouped.matrix import GroupedMatrix, Rows
from loadmaster_plugins.grouped.runs import clip, pick

if TYPE_CHECKING:
    import torch

MIDDLE = 8
WORDS_OF_ROWS = AxisMap(axis="out", per=NIBBLES, hard=False)


def judge(evidence: Evidence, said: int | None) -> AwqSize:
    """Return the sizes. Raises IntegrityError for zero points of another shape or type, or groups of no size."""
    (columns, words), (groups, rows) = (evidence.tensor(suffix).shape for suffix in ("qweight", "scales"))
    if "qzeros" in evidence.stored.tensors:
        evidence.of_type("qzeros", frozenset({"I32"}))
        evidence.shaped("qzeros", (groups, words), f"qweight {[columns, words]}, scales {[groups, rows]}")
    return AwqSize(rows, columns, *group_size(evidence, columns, groups, said))


def layouts(claim: Claim) -> tuple[TensorLayout, ...]:
    """Return the layouts of `qweight`, `scales` and, where there are zero points, `qzeros`."""
    group = AxisMap(axis="in", per=claim.group_size, hard=False)
    columns, rows = AxisMap(axis="in", hard=False), AxisMap(axis="out", hard=False)
    found = [
        TensorLayout(name="qweight", dims=(columns, WORDS_OF_ROWS), dtype="I32", role="quantised"),
        TensorLayout(name="scales", dims=(group, rows), dtype=claim.dtype, role="scales"),
    ]
    if claim.params["zeros"]:
        found.append(TensorLayout(name="qzeros", dims=(group, WORDS_OF_ROWS), dtype="I32", role="scales"))
    return tuple(found)


def decoded(part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> GroupedMatrix:
    """Return the matrix over a rank's tensors. Nothing is unpacked before it is asked for."""
    columns = sum(interval.size for interval in part.inner)
    scales = tensors["scales"]
    return GroupedMatrix(
        shape=(part.rows, part.columns),
        rows=sum(interval.size for interval in part.out),
        columns=columns,
        bits=BITS,
        codes=_rows(part, tensors["qweight"][:columns]),
        scales=lambda start, stop: scales[:, start:stop].t(),
        zeros=_rows(part, tensors["qzeros"]) if part.params["zeros"] else _middle(scales),
        grouping=consecutive(part.inner, part.group_size, held_whole=False, device=scales.device),
    )


def _rows(part: PackedMatrix, stored: torch.Tensor) -> Rows:
    """Return the values that belong to rows, from int32 [anything, words of rows] to uint8 [rows, anything]."""
    runs = WORDS_OF_ROWS.kept(part.out)

    def rows(start: int, stop: int) -> torch.Tensor:
        return pick(clip(runs, start, stop), NIBBLES, lambda first, last: unpack_rows(turned(stored[:, first:last])), 0)

    return rows


def _middle(scales: torch.Tensor) -> Rows:
    import torch

    middle = torch.full((1, 1), MIDDLE, dtype=torch.uint8, device=scales.device)
    return lambda start, stop: middle.expand(stop - start, len(scales))
