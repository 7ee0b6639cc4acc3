"""The kernel `autoawq`: that package's own `gemm` module over the tensors as the file has them.

It computes in float16 whatever the activations are. Without a GPU it decodes the whole matrix for every product, so it needs
more memory and time than `dequant`: it is here to compare with, and is used when asked for only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.quantization import Matrix, MatrixFacts, Suitability
from loadmaster_plugins.kernels.agreement import check_agreement
from loadmaster_plugins.kernels.private_import import installed, private_module
from loadmaster_plugins.kernels.shape_check import check_shapes

if TYPE_CHECKING:
    import torch

PACKAGE: Final = "awq"

MODULE: Final = "awq.modules.linear.gemm"

WORD: Final = 8
"""Codes in a packed word, along the rows."""


class AutoAwq:
    """The `gemm` module of autoawq 0.2, for matrices of its own format that are cut between words and groups."""

    name = "autoawq"

    def judge(self, facts: MatrixFacts) -> Suitability:
        """Suits a whole-word, whole-group part of an AWQ matrix where the package is installed; never before `dequant`."""
        checks = (
            (facts.quantizer != "awq", f"a matrix of {facts.quantizer}, not awq"),
            (not installed(PACKAGE), "the package autoawq is not installed"),
            (facts.bits != 4, f"weights of {facts.bits} bits, not 4"),
            (facts.stacked, "one of several matrices in a stack"),
            (facts.rows == 0 or facts.columns == 0, "this rank has no part of it"),
            (not facts.aligned, "a scale group is shared with another rank, or short"),
            (facts.group_size == 0 or facts.columns % facts.group_size != 0, f"{facts.columns} columns are not whole groups"),
            (facts.rows % WORD != 0, f"{facts.rows} rows are no multiple of {WORD}"),
        )
        obstacle = next((reason for fails, reason in checks if fails), "")
        return Suitability(
            score=0 if obstacle else 0.05, reason=obstacle or "autoawq's module decodes the whole matrix each time"
        )

    def layouts(self, layouts: tuple[TensorLayout, ...], facts: MatrixFacts) -> tuple[TensorLayout, ...]:
        """Keep the tensors as the file has them."""
        return layouts

    def prepare(
        self, matrix: Matrix, tensors: Mapping[str, torch.Tensor], facts: MatrixFacts
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Put the tensors into a module of the package and return its product.

        Raises PlanError when the tensors have other shapes than the module's own, or mean other weights to it.
        """
        groups, words = facts.columns // facts.group_size, facts.rows // WORD
        shapes = {"qweight": (facts.columns, words), "qzeros": (groups, words), "scales": (groups, facts.rows)}
        check_shapes(self.name, facts, tensors, shapes)
        module = _module(facts, tensors["qweight"].device)
        for name in shapes:
            setattr(module, name, tensors[name])

        def product(x: torch.Tensor) -> torch.Tensor:
            # The module reads two leading dimensions of whatever it is given.
            result: torch.Tensor = module(x.reshape(-1, 1, x.shape[-1]) if x.numel() else x.new_empty(0, 1, facts.columns))
            return result.reshape(*x.shape[:-1], facts.rows)

        check_agreement(self.name, product, matrix, facts, tensors["scales"])
        return product


def _module(facts: MatrixFacts, device: torch.device) -> Any:
    """Return an empty module of the package. Its buffers, as large as the packed matrix, are replaced at once."""
    gemm: Any = private_module(MODULE)
    if device.type != "cuda":
        # Its Triton kernels are preferred wherever Triton can be imported, also for tensors that no GPU can reach.
        gemm.TRITON_AVAILABLE = False
        gemm.user_has_been_warned = True
    return gemm.WQLinear_GEMM(4, facts.group_size, facts.columns, facts.rows, False, device).eval()
