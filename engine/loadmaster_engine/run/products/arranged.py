"""Products of linear modules whose matrices were arranged for the processor once, and taken together where they share an input.

The tiles are kept beside the matrices, at the price of as much memory, and modules that get the same input (queries, keys and
values; gate and up) become one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from loadmaster_engine.run.products.huge_pages import collapse
from loadmaster_engine.run.products.processor import multiplies
from loadmaster_engine.run.products.siblings import Run, shared_inputs
from loadmaster_engine.run.products.tiles import Tiles
from loadmaster_hookspecs.products import TOGETHER

if TYPE_CHECKING:
    import torch


class JointProduct:
    """Linear modules with one input, multiplied together (`loadmaster_hookspecs.products.Together`).

    The first that is called computes for all, the others find theirs. Whoever is called with another input, or has got another
    parameter meanwhile, computes its own product as ever.
    """

    def __init__(self, modules: Sequence[torch.nn.Linear]) -> None:
        import torch

        self.modules = tuple(modules)
        self._known = [(module._parameters, module.weight, module.bias) for module in modules]
        weights = [module.weight.detach() for module in modules]
        self.tiles = Tiles(weights, _joined_bias(modules))
        self._sizes = [len(weight) for weight in weights]
        self._split = torch.split_with_sizes
        self._input: torch.Tensor | None = None
        self._results: dict[int, torch.Tensor] = {}
        for index, module in enumerate(modules):
            module.forward = partial(self._alone if len(modules) == 1 else self._together, index)  # type: ignore[method-assign]
        if len(modules) > 1:
            vars(modules[0])[TOGETHER] = self

    def product(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Return the results of all modules side by side, or None when one has got another parameter."""
        return self.tiles.multiply(rows) if all(self._fits(index, rows) for index in range(len(self._known))) else None

    def _alone(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        return self.tiles.multiply(rows) if self._fits(index, rows) else self._plain(index, rows)

    def _together(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        if not self._fits(index, rows):
            return self._plain(index, rows)
        if index == 0:
            self._input, self._results = rows, dict(enumerate(self._split(self.tiles.multiply(rows), self._sizes, -1)))
        elif rows is not self._input or index not in self._results:
            return self._plain(index, rows)
        result = self._results.pop(index)
        if not self._results:
            self._input = None
        return result

    def _fits(self, index: int, rows: torch.Tensor) -> bool:
        parameters, weight, bias = self._known[index]
        same = parameters["weight"] is weight and parameters["bias"] is bias
        return same and rows.dtype == weight.dtype and rows.numel() > 0

    def _plain(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        import torch

        parameters, weight, _ = self._known[index]
        present = parameters["weight"]
        return torch.nn.functional.linear(rows, weight if present is None else present, parameters["bias"])


def can_arrange(features: frozenset[str] | None = None) -> bool:
    """Return whether this processor multiplies bfloat16 and torch has the library that arranges matrices for it."""
    import torch

    return multiplies("BF16", features) and torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def arrange(module: torch.nn.Module, run: Run) -> int:
    """Arrange the bfloat16 matrices of all linear modules and return the bytes that this takes.

    `run` runs a token through the model: modules that get the same input are found by watching. Weights that are changed in
    place afterwards must be arranged again; calling this again does so.
    """
    import torch

    restore(module)
    chosen = [part for part in module.modules() if type(part) is torch.nn.Linear and part.weight.dtype == torch.bfloat16]
    groups = shared_inputs(chosen, run)
    grouped = {part for group in groups for part in group}
    with torch.inference_mode():
        products = [JointProduct(group) for group in [*groups, *([part] for part in chosen if part not in grouped)]]
        # Measured with one request: a step takes a tenth less.
        collapse((product.tiles.address, product.tiles.nbytes) for product in products)
    return sum(product.tiles.nbytes for product in products)


def restore(module: torch.nn.Module) -> None:
    """Give all linear modules their own product back."""
    import torch

    for part in module.modules():
        if type(part) is torch.nn.Linear:
            vars(part).pop("forward", None)
            vars(part).pop(TOGETHER, None)


def _joined_bias(modules: Sequence[torch.nn.Linear]) -> torch.Tensor | None:
    import torch

    if all(module.bias is None for module in modules):
        return None
    return torch.cat(
        [module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias.detach() for module in modules]
    )
