"""The arithmetic of changed parameters, in the worker: peft's `lora.ParamWrapper` without ever making the changed stack."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from loadmaster_hookspecs.adapters import AdapterPart, BaseLayer, LiveChange, MergeChange

STACK: Final = 3
"""Dimensions of a stack of matrices."""

PRODUCTS: Final = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm, torch.mm)


class Changed:
    """W + scale * left right in the place of W: one matrix, or a stack of which modelling code takes one at a time.

    `torch.nn.functional.linear` and matrix products are computed from the factors. Whatever else is done with it is done with
    the sum, which is then made for that moment.
    """

    def __init__(self, weight: Any, left: torch.Tensor, right: torch.Tensor, scale: float) -> None:
        self._weight, self._left, self._right, self._scale = weight, left, right, scale
        self.shape, self.dtype = weight.shape, weight.dtype

    def __getitem__(self, index: Any) -> Any:
        """Return one changed matrix of a stack."""
        one = isinstance(index, int) or (isinstance(index, torch.Tensor) and index.ndim == 0)
        if not one or len(self.shape) != STACK:
            return self.dense()[index]
        number = int(index)
        return Changed(self._weight[number], self._left[number], self._right[number], self._scale)

    def __getattr__(self, name: str) -> Any:
        """Return whatever the sum has."""
        return getattr(self.dense(), name)

    def dense(self) -> torch.Tensor:
        """Return the sum."""
        total: torch.Tensor = self._weight + self._scale * (self._left @ self._right)
        return total

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute a function of torch one of whose arguments is a changed matrix."""
        more = dict(kwargs or {})
        second = args[1] if len(args) > 1 else None
        if isinstance(second, Changed) and not isinstance(args[0], Changed):
            x, rest = args[0], args[2:]
            if func is torch.nn.functional.linear:
                low = torch.nn.functional.linear(torch.nn.functional.linear(x, second._right), second._left)
                return func(x, second._weight, *rest, **more) + second._scale * low
            if func in PRODUCTS and not rest and not more:
                return func(x, second._weight) + second._scale * (x @ second._left @ second._right)
        return func(*map(_dense, args), **{name: _dense(value) for name, value in more.items()})


def live_parameters(part: AdapterPart, tensors: Mapping[str, torch.Tensor], layer: BaseLayer) -> LiveChange:
    """Return what runs in the place of the module: its own code, on parameters that are changed as they are used."""
    module = layer.module
    changes = {name: (*factors(part, tensors, name), _scale(part, name)) for name in part.touches}

    def forward(*args: Any, **kwargs: Any) -> Any:
        twin = copy.copy(module)
        # What an instance holds itself is found before parameters and modules of that name.
        twin.__dict__.update({name: Changed(getattr(module, name), *change) for name, change in changes.items()})
        return type(module).forward(twin, *args, **kwargs)

    return LiveChange(forward=forward)


def merge_parameters(part: AdapterPart, tensors: Mapping[str, torch.Tensor]) -> dict[str, MergeChange]:
    """Return the changes of the parameters, of a stack some matrices at a time. `tensors` are float32."""
    return {name: _merged(*factors(part, tensors, name), _scale(part, name)) for name in part.touches}


def factors(part: AdapterPart, tensors: Mapping[str, torch.Tensor], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of a parameter's factors whose product is what it is changed by: [..., first, rank], [..., rank, second].

    peft stores A as [count * rank, in] and B as [out, rank * count].
    """
    a, b, count = tensors[f"{name}.A"], tensors[f"{name}.B"], int(part.params[f"{name}.count"])
    if not count:
        return b, a
    a, b = a.view(count, -1, a.shape[1]), b.view(len(b), -1, count).permute(2, 0, 1)
    return (a.transpose(1, 2), b.transpose(1, 2)) if part.params["transposed"] else (b, a)


def _scale(part: AdapterPart, name: str) -> float:
    return float(part.params[f"{name}.scale"])


def _merged(left: torch.Tensor, right: torch.Tensor, scale: float) -> MergeChange:
    whole = right.ndim < STACK
    return lambda start, stop, rows: rows + scale * (left[start:stop] @ (right if whole else right[start:stop]))


def _dense(value: Any) -> Any:
    return value.dense() if isinstance(value, Changed) else value
