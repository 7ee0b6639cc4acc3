"""An adapter in the weights themselves: the change is added once, some rows at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import torch

from loadmaster_engine.load.adapters import AdapterLoad
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.run.adapters.layers import PlacedLayer, Sum
from loadmaster_engine.run.adapters.resident import Resident
from loadmaster_hookspecs.adapters import MergeChange

TILE_ELEMENTS: Final = 4 << 20
"""Weights that are merged at a time, at most, unless a single row has more."""


class Merged(NamedTuple):
    """What merging did: the parameters that it changed, by name, and the model's own in the place of which others were put."""

    touched: frozenset[str]
    own: dict[str, torch.nn.Parameter | None]


def merge(host: PluginHost, model: torch.nn.Module, load: AdapterLoad, shared: Collection[str], add_up: Sum) -> Merged:
    """Change the weights. They must lie in the arena and be shared with no other module. All ranks do this together."""
    adapter = Resident(0, load.plan)
    adapter.hold(load)
    own = {name: put(model, name, parameter) for name, parameter in adapter.replaced.items()}
    kind = host.adapter_kind(load.plan.kind)
    for part in load.plan.parts:
        layer = PlacedLayer(model.get_submodule(part.path), None, add_up if part.path in shared else None)
        with torch.inference_mode(), host.attributed(kind, f"merge of adapter kind {kind.name} for {part.path}"):
            changes = kind.merge(part, adapter.tensors_of(part), layer)
            if set(changes) != set(part.touches):  # others may be views of a file, or shared with another module
                raise ValueError(f"changes {sorted(changes)} of a module whose part touches {sorted(part.touches)}")
            _apply(layer.module, changes)
    touched = frozenset(f"{part.path}.{name}" for part in load.plan.parts for name in part.touches)
    return Merged(touched, own)


def put(model: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> torch.nn.Parameter | None:
    """Put a parameter in the place of another and return that one."""
    path, _, last = name.rpartition(".")
    owner = model.get_submodule(path)
    before = owner._parameters[last]
    owner._parameters[last] = parameter
    return before


def _apply(module: torch.nn.Module, changes: Mapping[str, MergeChange]) -> None:
    """Change parameters in place, some rows at a time."""
    for name, change in changes.items():
        weight = module.get_parameter(name).data
        rows = max(1, TILE_ELEMENTS // max(1, weight[:1].numel()))
        for start in range(0, len(weight), rows):
            stop = min(start + rows, len(weight))
            weight[start:stop] = change(start, stop, weight[start:stop].float()).to(weight.dtype)
