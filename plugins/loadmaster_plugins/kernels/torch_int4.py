"""The kernel that multiplies with torch's packed int4 matrices. The codes are repacked where they lie, once per matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.quantization import Affine, Matrix, MatrixFacts, Suitability
from loadmaster_plugins.kernels.int4_layout import BlockOrder
from loadmaster_plugins.kernels.int4_rearrange import rearrange
from loadmaster_plugins.kernels.tiles import tiles

if TYPE_CHECKING:
    import torch

GROUPS: Final = (32, 64, 128, 256)
"""Columns per scale that torch's product accepts."""

ROWS: Final = 16
"""What the number of rows must be a multiple of."""

SCALES_AND_ZEROS: Final = "scales_and_zeros"
"""The computed tensor [in / group, out, 2]: a weight is `(code - 8) * scale + zero`."""

SCORES: Final = {("cpu", "BF16"): 0.9, ("cpu", "F32"): 0.5, ("cpu", "F16"): 0.5, ("cuda", "BF16"): 0.9}
"""Score by device and type of activations. In other types than bfloat16 torch's product is slow; unpacking is what is left."""


class TorchInt4:
    """4-bit affine matrices in whole groups, on the CPU and, in bfloat16, on CUDA."""

    name = "torch-int4"

    def judge(self, facts: MatrixFacts) -> Suitability:
        """Suits what torch's product accepts: see `GROUPS`, `ROWS` and `SCORES`."""
        obstacle = _obstacle(facts)
        if obstacle:
            return Suitability(score=0, reason=obstacle)
        score = SCORES[facts.device, facts.dtype]
        how = "torch's int4 product" if facts.dtype == "BF16" else "unpacks torch's int4 tiles"
        return Suitability(score=score, reason=f"{how}, {facts.bits} bits in groups of {facts.group_size}")

    def layouts(self, layouts: tuple[TensorLayout, ...], facts: MatrixFacts) -> tuple[TensorLayout, ...]:
        """Rewrite the packed codes in place, give the other tensors back, and add scales and zeros as torch wants them.

        Raises PlanError when not exactly one tensor has the role `quantised`: then nothing says where the codes are.
        """
        packed = [layout.name for layout in layouts if layout.role == "quantised"]
        if len(packed) != 1:
            raise PlanError(
                "LM-KERNEL-LAYOUT",
                f"the {facts.quantizer} quantizer names no single tensor of packed weights",
                where={"kernel": self.name, "quantizer": facts.quantizer},
                why=f"{len(packed)} of {len(layouts)} tensors have the role `quantised`: {', '.join(packed) or 'none'}",
                hints=("--kernel dequant works with any quantizer",),
            )
        kept = (
            msgspec.structs.replace(layout, scratched=layout.name == packed[0], staged=layout.name != packed[0])
            for layout in layouts
        )
        dims = (AxisMap(axis="in", per=facts.group_size, hard=False), AxisMap(axis="out"), AxisMap(axis="pair"))
        added = TensorLayout(name=SCALES_AND_ZEROS, dims=dims, dtype=facts.dtype, role="scales", computed=True)
        return (*kept, added)

    def prepare(
        self, matrix: Matrix, tensors: Mapping[str, torch.Tensor], facts: MatrixFacts
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Repack the codes over themselves and return the product.

        Allocates the packed bytes of this matrix a second time while it runs, because the codes of a row may lie anywhere in
        them, and a tile of codes. Raises PlanError when the matrix has no codes to compute with, or too little memory for them.
        """
        from loadmaster_plugins.kernels.int4_cpu import cpu_product
        from loadmaster_plugins.kernels.int4_cuda import cuda_product, pack_cuda
        from loadmaster_plugins.kernels.int4_layout import machine_order, pack

        affine = matrix.affine()
        memory = _packed_memory(tensors, matrix.shape)
        if affine is None or memory is None:
            raise _unfit(facts, "no codes with a scale and a zero per group" if affine is None else "too few packed bytes")
        if affine.group_size != facts.group_size:
            raise _unfit(facts, f"its codes are in groups of {affine.group_size}")
        scales_and_zeros = tensors[SCALES_AND_ZEROS]
        fill_scales_and_zeros(scales_and_zeros, affine)
        on_cuda = facts.device == "cuda"
        repack(memory, affine, pack_cuda if on_cuda else pack, None if on_cuda else machine_order())
        return (cuda_product if on_cuda else cpu_product)(memory, scales_and_zeros, affine.group_size)


def fill_scales_and_zeros(dest: torch.Tensor, affine: Affine) -> None:
    """Write scales and torch's zeros into `dest` [groups, out, 2]: `(code - z) * s = (code - 8) * s + (8 - z) * s`."""
    scales = affine.scales.float()
    dest[..., 0] = scales
    dest[..., 1] = (8 - affine.zeros.float()) * scales


def repack(
    memory: torch.Tensor, affine: Affine, pack: Callable[[torch.Tensor], torch.Tensor], order: BlockOrder | None = None
) -> None:
    """Replace the codes in `memory`, uint8 [rows, columns / 2], by the same in torch's order. `pack` packs a tile of rows.

    With an `order` whole blocks of it are rearranged without unpacking, where the matrix offers words.
    """
    import torch

    packed = torch.empty_like(memory)
    rows, half = memory.shape
    begin = rearrange(affine.words, packed, order) if affine.words is not None and order is not None else 0
    for start, stop in tiles(rows - begin, half * 2):
        packed[begin + start : begin + stop] = pack(affine.codes(begin + start, begin + stop))
    memory.copy_(packed)


def _packed_memory(tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> torch.Tensor | None:
    """Return the memory of the packed codes as uint8 [rows, columns / 2], or None when there is too little of it.

    The packed codes are the largest tensor: they take 4 bits a weight, and scales and zeros at most 2 with 32 columns a group.
    """
    import torch

    rows, columns = shape
    largest = max(tensors.values(), key=lambda tensor: tensor.nbytes)
    flat = largest.view(-1).view(torch.uint8)
    needed = rows * columns // 2
    return flat[:needed].view(rows, columns // 2) if flat.numel() >= needed else None


def _obstacle(facts: MatrixFacts) -> str:
    """Return why torch's product cannot be used, or nothing."""
    checks = (
        (facts.bits != 4, f"weights of {facts.bits} bits, not 4"),
        (facts.stacked, "one of several matrices in a stack"),
        (facts.group_size not in GROUPS, f"groups of {facts.group_size} columns, not {', '.join(map(str, GROUPS))}"),
        (not facts.aligned, "a scale group is shared with another rank, or short"),
        (facts.rows == 0 or facts.rows % ROWS != 0, f"{facts.rows} rows, not a multiple of {ROWS}"),
        (facts.columns == 0 or facts.columns % max(1, facts.group_size) != 0, f"{facts.columns} columns, not whole groups"),
        ((facts.device, facts.dtype) not in SCORES, f"no product in {facts.dtype} on {facts.device}"),
    )
    return next((reason for fails, reason in checks if fails), "")


def _unfit(facts: MatrixFacts, why: str) -> PlanError:
    return PlanError(
        "LM-KERNEL-UNFIT",
        f"torch-int4 cannot multiply with this {facts.quantizer} matrix",
        where={"kernel": TorchInt4.name, "quantizer": facts.quantizer},
        why=f"{why}: {facts.rows} rows, {facts.columns} columns, groups of {facts.group_size}",
        hints=("--kernel dequant works with any matrix",),
    )
