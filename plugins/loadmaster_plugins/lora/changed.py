"""A parameter that is changed by products of factors, without the sum ever being made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import torch

STACK: Final = 3
"""Dimensions of a stack of matrices."""

PRODUCTS: Final = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm, torch.mm)


class Factors(NamedTuple):
    """scale * left right, of one matrix or of a stack: [..., first, rank] and [..., rank, second]."""

    left: torch.Tensor
    right: torch.Tensor
    scale: float

    def one(self, index: int) -> Factors:
        """Return the factors of one matrix of the stack."""
        return Factors(self.left[index], self.right[index], self.scale)

    def delta(self, start: int, stop: int) -> torch.Tensor:
        """Return the change of some rows of the matrix, or of some matrices of the stack."""
        return self.scale * (self.left[start:stop] @ (self.right if self.right.ndim < STACK else self.right[start:stop]))


class Stack(Protocol):
    """What the matrices of a stack are changed by."""

    def one(self, index: int) -> Factors:
        """Return the factors of one matrix."""
        ...

    def delta(self, start: int, stop: int) -> torch.Tensor:
        """Return the change of some matrices."""
        ...


class Changed:
    """W + change in the place of W: one matrix, or a stack of which modelling code takes one at a time.

    `torch.nn.functional.linear` and matrix products are computed from the factors. Whatever else is done with it is done with
    the sum, which is then made for that moment.
    """

    def __init__(self, weight: Any, factors: Factors | Stack) -> None:
        self._weight, self._factors = weight, factors
        self.shape, self.dtype = weight.shape, weight.dtype

    def __getitem__(self, index: Any) -> Any:
        """Return one changed matrix of a stack."""
        one = isinstance(index, int) or (isinstance(index, torch.Tensor) and index.ndim == 0)
        if not one or len(self.shape) != STACK:
            return self.dense()[index]
        return Changed(self._weight[int(index)], self._factors.one(int(index)))

    def __getattr__(self, name: str) -> Any:
        """Return whatever the sum has."""
        return getattr(self.dense(), name)

    def dense(self) -> torch.Tensor:
        """Return the sum."""
        total: torch.Tensor = self._weight + self._factors.delta(0, self.shape[0])
        return total

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute a function of torch one of whose arguments is a changed parameter."""
        more = dict(kwargs or {})
        second = args[1] if len(args) > 1 else None
        if isinstance(second, Changed) and isinstance(second._factors, Factors) and not isinstance(args[0], Changed):
            (x, _, *rest), (left, right, scale) = args, second._factors
            if func is torch.nn.functional.linear:
                low = torch.nn.functional.linear(torch.nn.functional.linear(x, right), left)
                return func(x, second._weight, *rest, **more) + scale * low
            if func in PRODUCTS and not rest and not more:
                return func(x, second._weight) + scale * (x @ left @ right)
        return func(*map(_dense, args), **{name: _dense(value) for name, value in more.items()})


def _dense(value: Any) -> Any:
    return value.dense() if isinstance(value, Changed) else value
