"""Products of several linear modules that share an input, taken together by whoever serves a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import torch

TOGETHER: Final = "loadmaster_together"
"""Attribute of the first of some linear modules with one input: their `Together`, where there is one."""


class Together(Protocol):
    """Linear modules with one input, multiplied at once. Each of them gives its own part when it is called, too."""

    @property
    def modules(self) -> tuple[torch.nn.Module, ...]:
        """The modules, in the order of their results."""
        ...

    def product(self, rows: torch.Tensor) -> torch.Tensor | None:
        """Return all results side by side in the last dimension, or None where each must be asked: parameters were replaced."""
        ...
