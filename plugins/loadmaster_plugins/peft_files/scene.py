"""An adapter beside a model: its tensors by the modules, or the parameters of modules, that they change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from loadmaster_hookspecs.adapters import AdapterModule, Replacement, StoredAdapter
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.models import ModuleKind
from loadmaster_plugins.peft_files.config import FILE
from loadmaster_plugins.peft_files.names import Repair, Sorted

DIMENSIONS: Final = (2, 3)
"""Dimensions of a parameter that can be changed by itself: a matrix, or a stack of them, as experts are."""

EXPERT: Final = re.compile(r"\.experts\.\d+\.")
"""What is in the path of an expert that is a layer of its own."""


class Changes(NamedTuple):
    """What adapters of one type have for each module: a `noun` for it, its tensors, and the kinds of modules it can change.

    `roles` has the ends of the tensors' names and the parts that they play.
    """

    noun: str
    roles: Mapping[str, str]
    kinds: tuple[ModuleKind, ...]


class Scene(NamedTuple):
    """An adapter's configuration and tensors, the model's modules by path, and the repair of names between them.

    `wrapped` has the parameters that `target_parameters` names, by the path in the file of their module. Where the file has
    experts as layers of their own, `modules` has these too, and `stacks` the module that holds each of them in a stack.
    """

    stored: StoredAdapter
    config: Any
    changes: Changes
    names: Sorted
    modules: Mapping[str, AdapterModule]
    repair: Repair
    wrapped: Mapping[str, Sequence[str]]
    stacks: Mapping[str, AdapterModule]

    @property
    def paths(self) -> list[str]:
        """The paths in the file of all modules that are changed, as a whole or in their parameters."""
        return list(dict.fromkeys([*self.names.changed, *self.names.inner]))

    @property
    def keys(self) -> list[str]:
        """What is changed: paths in the file of modules, and of the parameters that are changed by themselves."""
        return [key for path in self.paths for key in self.keys_of(path)]

    def module(self, path: str) -> AdapterModule:
        """Return the module of a path in the file."""
        return self.modules[self.repair.model_path(path)]

    def keys_of(self, path: str) -> list[str]:
        """Return what is changed of one module."""
        return [f"{path}.{name}" for name in self.wrapped[path]] if path in self.wrapped else [path]

    def levels(self, path: str) -> dict[int, dict[str, str]]:
        """Return the tensors of a module's changes by the number of wrappers around each."""
        outer = {0: self.names.changed[path]} if path in self.names.changed else {}
        return outer | self.names.inner.get(path, {})

    def is_whole(self, path: str) -> bool:
        """Return whether a module is changed as a whole: changing its one matrix is the same for a linear layer."""
        return path not in self.wrapped or (
            self.module(path).kind == "linear" and list(self.wrapped[path]) == ["weight"] and path not in self.names.inner
        )

    def replacements(self) -> tuple[Replacement, ...]:
        """Return the parameters in whose place the adapter's own tensors are used."""
        return tuple(
            Replacement(path=self.repair.model_path(path), name=name, tensor=tensor)
            for path, own in self.names.plain.items()
            for name, tensor in own.items()
        )

    def matched(self) -> str:
        """Return how many of the modules' changes match, which after `match` is all: `216/216 pairs`."""
        return f"{len(self.keys)}/{len(self.keys)} {self.changes.noun}"

    def remarks(self) -> Iterator[Finding]:
        """Yield the repair of names, if there is one, and targets without effect."""
        if str(self.repair):
            yield Finding(level="info", code="LM-ADAPTER-PREFIX", where=FILE, message=f"{self.matched()}, {self.repair}")
        for target in targets(self.config):
            if not any(_fits(key, target) for key in self.keys):
                message = f"target_parameters has {target!r}, which fits no parameter of the model"
                yield Finding(level="warning", code="LM-ADAPTER-PATTERN", where=FILE, message=message)


def targets(config: Any) -> Sequence[str]:
    """Return the parameters that a configuration targets by themselves."""
    return getattr(config, "target_parameters", None) or ()


def wrapped_parameters(config: Any, modules: Sequence[AdapterModule], repair: Repair) -> dict[str, list[str]]:
    """Return the parameters that are targeted by themselves, by the path in the file of their module, in its own order.

    peft wraps them in that order, so that the first is the innermost. It has no such wrapper for embeddings that looks up rows.
    """
    found: dict[str, list[str]] = {}
    for module in modules if targets(config) else ():
        path = repair.stored_path(module.path)
        names = [name for name, shape in shapes_of(module).items() if len(shape) in DIMENSIONS]
        own = [name for name in names if any(_fits(f"{path}.{name}", target) for target in targets(config))]
        if own and module.kind != "embedding":
            found[path] = own
    return found


def shapes_of(module: AdapterModule) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a module's parameters, quantised stacks included."""
    return module.parameters | module.packed


def expert_layers(names: Sorted, modules: Sequence[AdapterModule]) -> tuple[list[AdapterModule], dict[str, AdapterModule]]:
    """Return the layers that a file takes experts for, and the module that holds each of them in a stack.

    Older versions of transformers had such layers, and checkpoints still name their matrices so. A file without any was made
    for code that has none, whatever its configuration would fit.
    """
    if not any(EXPERT.search(path) for path in names.changed):
        return [], {}
    layers, stacks = [], {}
    for module in modules:
        for path, matrix in module.stacked.items():
            columns = shapes_of(module)[matrix.parameter][-1]
            layers.append(AdapterModule(path=path, kind="linear", in_features=columns, out_features=matrix.rows))
            stacks[path] = module
    return layers, stacks


def _fits(key: str, target: str) -> bool:
    return key == target or key.endswith(f".{target}")
