"""A rank's part of a module that an adapter changes, as adapter kinds see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Sum = Callable[["torch.Tensor"], "torch.Tensor"]
"""Adds a tensor up over the ranks."""


class PlacedLayer:
    """The module on this rank. `weight` stands for the module's own where an adapter replaces that.

    `add_up` is None where every rank has all of the module's inputs.
    """

    def __init__(self, module: torch.nn.Module, weight: torch.Tensor | None, add_up: Sum | None) -> None:
        self.module = module
        self._weight = weight
        self._add_up = add_up
        self._packed: Callable[[int, int], torch.Tensor] | None = None

    def weight(self, start: int, stop: int) -> torch.Tensor:
        """Return rows of the rank's own weight as float32."""
        from loadmaster_engine.load.packed import PackedLinear

        if self._weight is None and isinstance(self.module, PackedLinear):
            self._packed = self._packed or self.module.weights()
            return self._packed(start, stop)
        weight = self.module.get_parameter("weight") if self._weight is None else self._weight
        return weight[start:stop].float()

    def total(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks where they share the module's inputs."""
        return self._add_up(partial) if self._add_up else partial
