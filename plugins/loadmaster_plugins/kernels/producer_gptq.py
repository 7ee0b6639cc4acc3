"""The kernel `auto-gptq`: that package's own linear modules over the tensors as the file has them.

Its modules decode the whole matrix for every product, in the type of the scales, so they need more memory and time than
`dequant`: they are here to compare with, and are used when asked for only.
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

PACKAGE: Final = "auto_gptq"

MODULES: Final = "auto_gptq.nn_modules.qlinear"
"""`qlinear_cuda_old` where groups lie together, `qlinear_cuda` for act-order: the package's own choice."""

BITS: Final = (2, 3, 4, 8)

WORD: Final = 32
"""What rows and columns must be a multiple of, so that every row of packed words is whole."""


class AutoGptq:
    """The modules of auto-gptq 0.7, for matrices of its own format that are cut between words and groups."""

    name = "auto-gptq"

    def judge(self, facts: MatrixFacts) -> Suitability:
        """Suits whole words and whole groups, or act-order, where the package is installed; never before `dequant`."""
        checks = (
            (facts.quantizer != "gptq", f"a matrix of {facts.quantizer}, not gptq"),
            (not installed(PACKAGE), "the package auto-gptq is not installed"),
            (facts.bits not in BITS, f"weights of {facts.bits} bits"),
            (facts.stacked, "one of several matrices in a stack"),
            (facts.rows == 0 or facts.columns == 0, "this rank has no part of it"),
            (facts.group_size != 0 and not facts.aligned, "a scale group is shared with another rank, or short"),
            (facts.rows % WORD != 0 or facts.columns % WORD != 0, f"rows or columns are no multiple of {WORD}"),
            (facts.group_size != 0 and facts.columns % facts.group_size != 0, f"{facts.columns} columns are not whole groups"),
        )
        obstacle = next((reason for fails, reason in checks if fails), "")
        return Suitability(
            score=0 if obstacle else 0.05, reason=obstacle or "auto-gptq's module decodes the whole matrix each time"
        )

    def layouts(self, layouts: tuple[TensorLayout, ...], facts: MatrixFacts) -> tuple[TensorLayout, ...]:
        """Keep the tensors as the file has them."""
        return layouts

    def prepare(
        self, matrix: Matrix, tensors: Mapping[str, torch.Tensor], facts: MatrixFacts
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Put the tensors into a module of the package and return its product, computed in the type of the scales.

        Raises PlanError when the tensors have other shapes than the module's own, or mean other weights to it.
        """
        module = _module(facts)
        check_shapes(self.name, facts, tensors, _shapes(facts, tensors))
        for name in ("qweight", "qzeros", "scales", "g_idx"):
            if name in tensors:
                setattr(module, name, tensors[name])
        scales = tensors["scales"]

        def product(x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = module(x.to(scales.dtype))
            return result.to(x.dtype)

        check_agreement(self.name, product, matrix, facts, scales)
        return product


def _module(facts: MatrixFacts) -> Any:
    """Return an empty module of the package. Its buffers, as large as the packed matrix, are replaced at once."""
    variant = "qlinear_cuda_old" if facts.group_size else "qlinear_cuda"
    linear = private_module(f"{MODULES}.{variant}").QuantLinear
    return linear(facts.bits, facts.group_size or facts.columns, facts.columns, facts.rows, False).eval()


def _shapes(facts: MatrixFacts, tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    groups = facts.columns // facts.group_size if facts.group_size else len(tensors["scales"])
    shapes: dict[str, tuple[int, ...]] = {
        "qweight": (facts.columns * facts.bits // 32, facts.rows),
        "qzeros": (groups, facts.rows * facts.bits // 32),
        "scales": (groups, facts.rows),
    }
    return shapes if facts.group_size else {**shapes, "g_idx": (facts.columns,)}
