"""Running modules again as if nothing was attached to them that asks other ranks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch

ONLY: Final = -1
"""The number of a hook in the place of all others: torch counts its own from 0 on."""


class Differs(Exception):
    """A module was called in another order, or computed something else, than the first time."""


class Call(NamedTuple):
    """What a module computed, and what its hooks made of that."""

    module: torch.nn.Module
    computed: Any
    returned: Any


class Replay:
    """The calls of a layer's modules that have hooks behind them, as collectives are.

    A rank that runs them a second time by `again` asks nobody: what it computes must be what it computed the first time, and it
    gets what hooks made of that then. So it may fail there, or stop, and no other rank waits for it.
    """

    def __init__(self, layer: torch.nn.Module) -> None:
        self._modules = [part for part in layer.modules() if part is not layer and part._forward_hooks]
        self._calls: list[Call] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note all calls."""
        self._calls.clear()
        handles = [part.register_forward_hook(self._begin, prepend=True) for part in self._modules]
        handles += [part.register_forward_hook(self._end) for part in self._modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def again(self) -> Iterator[None]:
        """Give again what was noted. Raises Differs unless all modules compute the same again, in the same order."""
        left = iter(self._calls)

        def give(module: torch.nn.Module, _args: object, output: Any) -> Any:
            call = next(left, None)
            if call is None or call.module is not module or not same(call.computed, output):
                raise Differs
            return _copy(call.returned)

        hooks = [part._forward_hooks for part in self._modules]
        for part in self._modules:
            part._forward_hooks = OrderedDict({ONLY: give})
        try:
            yield
        finally:
            for part, own in zip(self._modules, hooks, strict=True):
                part._forward_hooks = own
        if next(left, None) is not None:
            raise Differs

    def _begin(self, module: torch.nn.Module, _args: object, output: Any) -> None:
        self._calls.append(Call(module, _copy(output), None))

    def _end(self, _module: torch.nn.Module, _args: object, output: Any) -> None:
        self._calls[-1] = self._calls[-1]._replace(returned=_copy(output))


def same(one: Any, other: Any) -> bool:
    """Return whether tensors have the same bits, and anything else is equal."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def _copy(value: Any) -> Any:
    """Return a copy that stays what it is when others write into the value."""
    if isinstance(value, tuple):
        return tuple(map(_copy, value))
    return value.clone() if isinstance(value, torch.Tensor) else value
