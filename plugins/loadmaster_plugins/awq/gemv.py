"""The layout gemv: columns packed eight to a word in plain order, groups along dimension 1 with room for more than there are.

Source: `WQLinear_GEMV.from_linear` of autoawq 0.2.9. Groups are not cut: every rank keeps those of
all columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.quantization import Claim, PackedMatrix
from loadmaster_plugins.awq.settings import BITS
from loadmaster_plugins.awq.sizes import NIBBLES, AwqSize, roomy_group_size
from loadmaster_plugins.grouped.bits import unpack_stream
from loadmaster_plugins.grouped.columns import consecutive
from loadmaster_plugins.grouped.evidence import Evidence
from loadmaster_plugins.grouped.matrix import GroupedMatrix
from loadmaster_plugins.grouped.runs import pick

if TYPE_CHECKING:
    import torch

ROWS = AxisMap(axis="out", hard=False)
WORDS_OF_COLUMNS = AxisMap(axis="in", per=NIBBLES, hard=False)


def judge(evidence: Evidence, said: int | None) -> AwqSize:
    """Return the sizes. Raises IntegrityError for zero points of another shape or type, or groups of no size."""
    (rows, words), (_, room) = (evidence.tensor(suffix).shape for suffix in ("qweight", "scales"))
    evidence.of_type("qzeros", frozenset({"I32"}))
    evidence.shaped("qzeros", (rows, -(-room // NIBBLES)), f"scales {[rows, room]}")
    columns = words * NIBBLES
    return AwqSize(rows, columns, roomy_group_size(evidence, columns, -(-room // NIBBLES), said))


def layouts(claim: Claim) -> tuple[TensorLayout, ...]:
    """Return the layouts of `qweight`, `scales` and `qzeros`."""
    return (
        TensorLayout(name="qweight", dims=(ROWS, WORDS_OF_COLUMNS), dtype="I32", role="quantised"),
        TensorLayout(name="scales", dims=(ROWS, AxisMap(axis="group", hard=False)), dtype=claim.dtype, role="scales"),
        TensorLayout(name="qzeros", dims=(ROWS, AxisMap(axis="group", per=NIBBLES, hard=False)), dtype="I32", role="scales"),
    )


def decoded(part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> GroupedMatrix:
    """Return the matrix over a rank's tensors. Nothing is unpacked before it is asked for."""
    qweight, scales, qzeros = (tensors[suffix] for suffix in ("qweight", "scales", "qzeros"))
    runs = WORDS_OF_COLUMNS.kept(part.inner)
    return GroupedMatrix(
        shape=(part.rows, part.columns),
        rows=sum(interval.size for interval in part.out),
        columns=sum(interval.size for interval in part.inner),
        bits=BITS,
        codes=lambda start, stop: pick(
            runs, NIBBLES, lambda first, last: unpack_stream(qweight[start:stop, first:last], BITS), 1
        ),
        scales=lambda start, stop: scales[start:stop],
        zeros=lambda start, stop: unpack_stream(qzeros[start:stop], BITS),
        grouping=consecutive(part.inner, part.group_size, held_whole=True, device=scales.device),
    )
