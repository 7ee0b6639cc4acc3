"""A check that tensors have the shapes that another package's module computes with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.quantization import MatrixFacts

if TYPE_CHECKING:
    import torch


def check_shapes(
    kernel: str, facts: MatrixFacts, tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise PlanError naming the first tensor that is missing, or of another shape than `shapes` says: a cut through a word."""
    for name, shape in shapes.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape:
            raise PlanError(
                "LM-KERNEL-UNFIT",
                f"{kernel} cannot multiply with this {facts.quantizer} matrix",
                where={"kernel": kernel, "tensor": name},
                why=f"its module takes {name} of shape {list(shape)}; this one is {list(found) if found else 'missing'}",
                hints=("--kernel dequant works with any matrix",),
            )
