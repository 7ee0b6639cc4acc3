"""Which linear modules get the same input, found out by watching the model run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

Run = Callable[[], object]
"""Runs the model once."""


class Call(NamedTuple):
    """A module that was called, with what, and a copy of that."""

    module: torch.nn.Linear
    given: torch.Tensor
    copy: torch.Tensor


def shared_inputs(modules: Sequence[torch.nn.Linear], run: Run) -> list[list[torch.nn.Linear]]:
    """Return groups of modules that were called one after the other with the same tensor, which nobody changed in between.

    A module that is called more than once belongs to no group.
    """
    calls: list[Call] = []
    for module in modules:
        module.forward = partial(_noted, calls, module)  # type: ignore[method-assign]
    try:
        run()
    finally:
        for module in modules:
            vars(module).pop("forward", None)
    times = Counter(call.module for call in calls)
    groups: list[list[Call]] = []
    for call in calls:
        last = groups[-1][-1] if groups else None
        if last is not None and times[last.module] == times[call.module] == 1 and _same(last, call):
            groups[-1].append(call)
        else:
            groups.append([call])
    return [[call.module for call in group] for group in groups if len(group) > 1]


def _same(first: Call, second: Call) -> bool:
    import torch

    alike = first.module.weight.dtype == second.module.weight.dtype
    return alike and first.given is second.given and torch.equal(first.copy, second.copy)


def _noted(calls: list[Call], module: torch.nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    import torch

    calls.append(Call(module, rows, rows.clone()))
    return torch.nn.functional.linear(rows, module.weight, module.bias)
