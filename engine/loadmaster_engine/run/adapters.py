"""Adapters on a running model: chosen for a call while the base stays as it is, or merged into the weights once and for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from loadmaster_engine.load.adapters import LoadedAdapter
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.run.groups import Group
from loadmaster_hookspecs.adapters import AdapterPart, LiveChange, MergeChange
from loadmaster_hookspecs.errors import UsageError
from loadmaster_hookspecs.sharding import ModulePlacement

TILE_ELEMENTS = 4 << 20
"""Weights that are merged at a time, at most, unless a single row has more."""


class PlacedLayer:
    """The rank's part of a module that an adapter changes."""

    def __init__(self, module: torch.nn.Module, weight: torch.Tensor | None, group: Group, *, shared: bool) -> None:
        self.module = module
        self._weight = weight
        self._group = group
        self._shared = shared

    def weight(self, start: int, stop: int) -> torch.Tensor:
        """Return rows of the rank's own weight as float32."""
        weight = self.module.get_parameter("weight") if self._weight is None else self._weight
        return weight[start:stop].float()

    def total(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks where they share the module's inputs."""
        return self._group.sum(partial) if self._shared else partial


class Adapters:
    """The adapters of one rank's model. `select` decides which of the live ones the next steps use.

    Changes come before the collectives of the modules, so that they belong to the partial results which the ranks put together
    anyway.
    """

    def __init__(self, host: PluginHost, model: torch.nn.Module, placements: Sequence[ModulePlacement], group: Group) -> None:
        self._host = host
        self._model = model
        self._group = group
        self._shared = {placed.path for placed in placements if placed.placement.collective_out == "sum"}
        self._merged = ""
        self._chosen = ""
        self._changes: dict[str, dict[str, LiveChange]] = {}
        self._replaced: dict[str, dict[str, torch.nn.Parameter]] = {}
        self._own: dict[str, torch.nn.Parameter | None] = {}

    def add_live(self, adapter: LoadedAdapter) -> None:
        """Make an adapter choosable. The base is left as it is."""
        name = adapter.plan.name
        replaced = _replacements(adapter)
        for part in adapter.plan.parts:
            layer, tensors = self._layer(part, replaced.get(f"{part.path}.weight")), _tensors(adapter, part)
            kind = self._host.adapter_kind(adapter.plan.kind)
            with torch.inference_mode(), self._host.attributed(kind, f"live of adapter kind {kind.name} for {part.path}"):
                change = kind.live(part, tensors, layer)
            if part.path not in self._changes:
                self._changes[part.path] = {}
                layer.module.register_forward_hook(self._hook(part.path), prepend=True)
            self._changes[part.path][name] = change
        self._replaced[name] = replaced

    def merge(self, adapter: LoadedAdapter) -> None:
        """Change the weights. They must lie in the arena and be shared with no other module."""
        for name, parameter in _replacements(adapter).items():
            self._put(name, parameter)
        for part in adapter.plan.parts:
            layer = self._layer(part)
            kind = self._host.adapter_kind(adapter.plan.kind)
            with torch.inference_mode(), self._host.attributed(kind, f"merge of adapter kind {kind.name} for {part.path}"):
                changes = kind.merge(part, _tensors(adapter, part), layer)
                _apply(layer.module, changes)
        self._merged = adapter.plan.name

    def select(self, name: str) -> None:
        """Use this adapter from now on; an empty name stands for the base, or for the merged adapter.

        Raises UsageError LM-USAGE-ADAPTER for a name that no adapter has.
        """
        name = "" if name == self._merged else name
        if name == self._chosen:
            return
        if name and name not in self._replaced:
            known = ", ".join(self._replaced) or "none"
            raise UsageError("LM-USAGE-ADAPTER", f"no adapter is called {name!r}", why=f"loaded: {known}")
        for parameter, own in self._own.items():
            self._put(parameter, own)
        self._own = {parameter: self._put(parameter, own) for parameter, own in self._replaced.get(name, {}).items()}
        self._chosen = name

    def _layer(self, part: AdapterPart, weight: torch.Tensor | None = None) -> PlacedLayer:
        return PlacedLayer(self._model.get_submodule(part.path), weight, self._group, shared=part.path in self._shared)

    def _hook(self, path: str) -> Any:
        changes = self._changes[path]

        def hook(_module: torch.nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
            change = changes.get(self._chosen)
            return None if change is None or change.result is None else change.result(args[0], output)

        return hook

    def _put(self, name: str, parameter: torch.nn.Parameter | None) -> torch.nn.Parameter | None:
        """Put a parameter in the place of another and return that one."""
        path, _, last = name.rpartition(".")
        owner = self._model.get_submodule(path)
        before = owner._parameters[last]
        owner._parameters[last] = parameter
        return before


def set_up(
    host: PluginHost,
    model: torch.nn.Module,
    placements: Sequence[ModulePlacement],
    group: Group,
    loaded: Sequence[LoadedAdapter],
    *,
    merged: bool,
) -> Adapters:
    """Return the model's adapters, made choosable or merged. Every rank must call this: ranks may have to add up norms."""
    adapters = Adapters(host, model, placements, group)
    for adapter in loaded:
        if merged:
            adapters.merge(adapter)
        else:
            adapters.add_live(adapter)
    return adapters


def _tensors(adapter: LoadedAdapter, part: AdapterPart) -> dict[str, torch.Tensor]:
    return {layout.name: adapter.tensors[f"{part.path}.{layout.name}"] for layout in part.layouts}


def _replacements(adapter: LoadedAdapter) -> dict[str, torch.nn.Parameter]:
    names = [f"{each.path}.{each.name}" for each in adapter.plan.replacements]
    return {name: torch.nn.Parameter(adapter.tensors[name], requires_grad=False) for name in names}


def _apply(module: torch.nn.Module, changes: Mapping[str, MergeChange]) -> None:
    """Change parameters in place, some rows at a time."""
    for name, change in changes.items():
        weight = module.get_parameter(name).data
        rows = max(1, TILE_ELEMENTS // max(1, weight[:1].numel()))
        for start in range(0, len(weight), rows):
            stop = min(start + rows, len(weight))
            weight[start:stop] = change(start, stop, weight[start:stop].float()).to(weight.dtype)
