"""Pairs of single parameters in the worker, experts above all: peft's `lora.ParamWrapper`."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from loadmaster_hookspecs.adapters import AdapterPart, BaseLayer, LiveChange, MergeChange
from loadmaster_plugins.lora.changed import Changed, Factors, Stack

Pair = tuple[torch.Tensor, torch.Tensor, float]
"""A [rank, in], B [rows, rank] and the scale of their product."""


class Layers(NamedTuple):
    """Pairs of matrices that were layers of their own: by matrix of the stack, then by part of its rows, of `parts`.

    `rows` and `columns` are those of a matrix of the stack, on this rank.
    """

    pairs: Mapping[int, Mapping[int, Pair]]
    parts: int
    rows: int
    columns: int

    def one(self, index: int) -> Factors:
        """Return the factors of one matrix: those of its parts in blocks, since each has a rank of its own."""
        pairs = self.pairs.get(index, {})
        like = next(a for own in self.pairs.values() for a, _, _ in own.values())
        none = like.new_zeros(self.rows // self.parts, 0)
        blocks = [pairs[part][1] if part in pairs else none for part in range(self.parts)]
        left: torch.Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
        scaled = [a * scale for a, _, scale in (pairs[part] for part in sorted(pairs))]
        return Factors(left, torch.cat([like.new_zeros(0, self.columns), *scaled]), 1.0)

    def delta(self, start: int, stop: int) -> torch.Tensor:
        """Return the change of some matrices."""
        return torch.stack([self.one(index).delta(0, self.rows) for index in range(start, stop)])


def live_parameters(part: AdapterPart, tensors: Mapping[str, torch.Tensor], layer: BaseLayer) -> LiveChange:
    """Return what runs in the place of the module: its own code, on parameters that are changed as they are used."""
    module = layer.module
    changes = {name: factors(part, tensors, name) for name in part.touches}

    def forward(*args: Any, **kwargs: Any) -> Any:
        twin = copy.copy(module)
        # What an instance holds itself is found before parameters and modules of that name.
        twin.__dict__.update({name: Changed(getattr(module, name), change) for name, change in changes.items()})
        return type(module).forward(twin, *args, **kwargs)

    return LiveChange(forward=forward)


def merge_parameters(part: AdapterPart, tensors: Mapping[str, torch.Tensor]) -> dict[str, MergeChange]:
    """Return the changes of the parameters, of a stack some matrices at a time. `tensors` are float32."""
    return {name: _merged(factors(part, tensors, name)) for name in part.touches}


def factors(part: AdapterPart, tensors: Mapping[str, torch.Tensor], name: str) -> Factors | Stack:
    """Return what changes a parameter.

    peft stores A of a stack as [count * rank, in] and B as [out, rank * count].
    """
    if "layers" in part.params:
        return _layers(part, tensors, name)
    a, b, count = tensors[f"{name}.A"], tensors[f"{name}.B"], int(part.params[f"{name}.count"])
    scale = float(part.params[f"{name}.scale"])
    if not count:
        return Factors(b, a, scale)
    a, b = a.view(count, -1, a.shape[1]), b.view(len(b), -1, count).permute(2, 0, 1)
    return Factors(a.transpose(1, 2), b.transpose(1, 2), scale) if part.params["transposed"] else Factors(b, a, scale)


def _layers(part: AdapterPart, tensors: Mapping[str, torch.Tensor], name: str) -> Layers:
    pairs: dict[int, dict[int, Pair]] = defaultdict(dict)
    for role in (role for role in part.tensors if role.startswith(f"{name}.") and role.endswith(".A")):
        key = role.removesuffix(".A")
        index, number = map(int, key.split(".")[-2:])
        pairs[index][number] = (tensors[role], tensors[f"{key}.B"], float(part.params[f"{key}.scale"]))
    a, b, _ = next(pair for own in pairs.values() for pair in own.values())
    parts = int(part.params[f"{name}.parts"])
    return Layers(dict(pairs), parts, parts * len(b), a.shape[1])


def _merged(change: Factors | Stack) -> MergeChange:
    return lambda start, stop, rows: rows + change.delta(start, stop)
