"""A check that another package's module multiplies with the same weights as the quantizer decodes.

Two files of one method may differ in what a stored zero point means, and a module of one version then computes with every zero
point off by one. Nothing in the tensors' shapes shows it; the weights do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.quantization import Matrix, MatrixFacts
from loadmaster_plugins.kernels.tiles import tiles

if TYPE_CHECKING:
    import torch

TOLERANCE: Final = 1e-2
"""Relative difference that rounding explains. A zero point that is off by one changes small weights by half and more."""

SMALLEST: Final = 2.0**-24
"""The smallest float16 above zero: what a weight may differ by where it has hardly any digits left."""

SPACING: Final = 32
"""Distance of the columns that are compared where groups do not lie together."""


def check_agreement(
    kernel: str, product: Callable[[torch.Tensor], torch.Tensor], matrix: Matrix, facts: MatrixFacts, probe: torch.Tensor
) -> None:
    """Compare one column per group, over all rows, with `matrix`. `probe` is any tensor of the type and device to compute in.

    Raises PlanError naming the kernel when a weight differs by more than `TOLERANCE`.
    """
    import torch

    rows, columns = matrix.shape
    chosen = torch.arange(0, columns, facts.group_size or SPACING, device=probe.device)
    ones = torch.zeros(len(chosen), columns, dtype=probe.dtype, device=probe.device)
    ones[torch.arange(len(chosen), device=probe.device), chosen] = 1
    found = product(ones).float()
    for start, stop in tiles(rows, columns):
        expected = matrix.weight(start, stop)[:, chosen].T.float()
        if not torch.allclose(found[:, start:stop], expected, rtol=TOLERANCE, atol=SMALLEST, equal_nan=True):
            raise PlanError(
                "LM-KERNEL-DIFFERS",
                f"the module of {kernel} computes with other weights than the {facts.quantizer} quantizer decodes",
                where={"kernel": kernel, "quantizer": facts.quantizer},
                why=f"rows {start} to {stop} differ by more than {TOLERANCE:.0%}: the package reads another variant",
                hints=("--kernel dequant works with any matrix",),
            )
