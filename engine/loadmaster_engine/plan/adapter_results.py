"""Checks of what adapter kinds return while planning.

A mistake in a plugin would otherwise show far away, or not at all. The checks run inside the context that attributes
exceptions, so their TypeError and ValueError leave as PluginError LM-PLUGIN-FAILED that names the plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import isfinite

import msgspec

from loadmaster_hookspecs.adapters import AdapterClaim, AdapterModule, AdapterPart, Replacement, StoredAdapter
from loadmaster_hookspecs.dtypes import TORCH_NAMES


def checked_adapter_claim(value: object, stored: StoredAdapter, modules: Sequence[AdapterModule]) -> AdapterClaim:
    """Return the claim.

    Raises TypeError or ValueError where it speaks of modules, parameters or tensors that are not there, contradicts itself, or
    leaves a stored tensor out.
    """
    if not isinstance(value, AdapterClaim):
        raise TypeError(f"returned {type(value).__name__} instead of an AdapterClaim")
    claim = msgspec.convert(msgspec.to_builtins(value), AdapterClaim)
    by_path = {module.path: module for module in modules}
    for part in claim.parts:
        _check_part(part, by_path)
    for replacement in claim.replacements:
        _check_replacement(replacement, by_path)
    replaced = [(each.path, each.name) for each in claim.replacements]
    for what, names in (("parts", [part.path for part in claim.parts]), ("replacements", replaced)):
        if len(set(names)) < len(names):
            raise ValueError(f"two {what} are of the same: each module, and each parameter, can have one")
    used = {
        *chain.from_iterable(part.tensors.values() for part in claim.parts),
        *(each.tensor for each in claim.replacements),
        *(each.name for each in claim.ignored),
    }
    absent, unused = sorted(used - stored.tensors.keys()), sorted(stored.tensors.keys() - used)
    if absent:
        raise ValueError(f"claims tensors that are not stored: {', '.join(absent[:8])}")
    if unused:
        raise ValueError(f"leaves {len(unused)} tensors out without a reason: {', '.join(unused[:8])}")
    return claim


def _check_part(part: AdapterPart, modules: Mapping[str, AdapterModule]) -> None:
    module = modules.get(part.path)
    if module is None or module.kind != part.kind:
        raise ValueError(f"the model has no module {part.path} of kind {part.kind}")
    if not isfinite(part.scale):
        raise ValueError(f"{part.path}: scale {part.scale} is no number to multiply with")
    roles = [layout.name for layout in part.layouts]
    if not roles or sorted(roles) != sorted(part.tensors) or not set(part.leading) <= set(roles):
        raise ValueError(
            f"{part.path}: layouts of {roles}, tensors of {sorted(part.tensors)}, leading {list(part.leading)}: "
            "each role needs both, once"
        )
    own = _axes(module)
    if own & part.axes.keys():
        raise ValueError(f"{part.path}: {sorted(own & part.axes.keys())} are axes of the module, whose sizes are known")
    for layout in part.layouts:
        unknown = {dim.axis for dim in layout.dims} - own - part.axes.keys()
        if unknown:
            known = sorted(own | part.axes.keys())
            raise ValueError(f"{part.path}: {layout.name} has the axes {sorted(unknown)}, known are {known}")
        if layout.computed or layout.scratched or layout.staged:
            raise ValueError(f"{part.path}: {layout.name} is marked as computed, scratched or staged, which is for kernels")
        if layout.dtype and layout.dtype not in TORCH_NAMES:
            raise ValueError(f"{part.path}: no element type is called {layout.dtype!r}")


def _axes(module: AdapterModule) -> set[str]:
    """Return the axes of a module that tensors of adapters can run along: its sides, and dimensions of its parameters."""
    sides = {"in", "out"} if module.out_features else set()
    shapes = module.parameters | module.packed
    return sides | {f"{name}.{dim}" for name, shape in shapes.items() for dim in range(len(shape))}


def _check_replacement(replacement: Replacement, modules: Mapping[str, AdapterModule]) -> None:
    module = modules.get(replacement.path)
    if module is None or replacement.name not in module.parameters:
        raise ValueError(f"{replacement.path} has no plain parameter {replacement.name} that could be replaced")
