"""Placements of all modules on all ranks: units are combined per domain, then the shard strategy decides."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil, lcm
from typing import Final

import msgspec

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.models import ModuleSpec
from loadmaster_hookspecs.sharding import ModulePlacement, Placement, ShardStrategy, Topology, Unit

BALANCE: Final = 1.125
"""What the largest part may have of an even share, so that no scale group is shared. Ranks wait for the slowest one."""


def place_modules(
    modules: Sequence[ModuleSpec], strategy: ShardStrategy, topology: Topology
) -> list[tuple[ModulePlacement, ...]]:
    """Return, for every rank, the placement of every module in model order.

    Modules of one domain are cut at the same places: their units are merged to the finest cut that suits all of them.
    """
    units = combined_units(modules, topology.tensor_parallel)
    by_rank: list[list[Placement]] = [
        [strategy.place(module, units[index], topology, rank) for index, module in enumerate(modules)]
        for rank in range(topology.tensor_parallel)
    ]
    return [
        tuple(
            ModulePlacement(path=module.path, placement=row[index], parts=_parts(module, [r[index] for r in by_rank]))
            for index, module in enumerate(modules)
        )
        for row in by_rank
    ]


def combined_units(modules: Sequence[ModuleSpec], world: int) -> list[dict[str, Unit]]:
    """Return, per module, the unit of each of its axes after merging with the other modules of the axis's domain.

    A unit is widened to the least common multiple of itself and every hard packing of the domain's tensors, and further to
    whole scale groups and pack words, where `world` ranks stay balanced all the same. Raises PlanError when the members of a
    domain disagree about its size.
    """
    sizes: dict[str, dict[int, str]] = defaultdict(dict)
    widths: dict[str, int] = defaultdict(lambda: 1)
    soft: dict[str, set[int]] = defaultdict(set)
    for module in modules:
        for axis, domain in module.domains.items():
            sizes[domain].setdefault(module.axes[axis] // module.units[axis].segments, module.path)
            widths[domain] = lcm(widths[domain], *_packing(module, axis, hard=True), module.units[axis].size)
            if module.units[axis].kind == "plain":
                soft[domain].update(_packing(module, axis, hard=False))
    for domain, members in sizes.items():
        if len(members) > 1:
            raise PlanError(
                "LM-PLAN-DOMAIN",
                "modules that must be cut at the same places have different sizes",
                where={"domain": domain},
                why=", ".join(f"{path} has {size}" for size, path in members.items()),
            )
    for domain, factors in soft.items():
        widths[domain] = _smoothed(next(iter(sizes[domain])), widths[domain], factors, world)
    return [
        {axis: _widen(unit, module.axes[axis], widths[module.domains[axis]]) for axis, unit in module.units.items()}
        for module in modules
    ]


def _packing(module: ModuleSpec, axis: str, *, hard: bool) -> list[int]:
    """Return the packing factors on `axis` that must not be cut, or those that may be but better are not."""
    return [dim.per for tensor in module.tensors for dim in tensor.dims if dim.axis == axis and dim.hard == hard]


def _smoothed(size: int, width: int, factors: Iterable[int], world: int) -> int:
    """Return the unit, at least `width`, that keeps `factors` whole as far as balance allows: the largest is given up first."""
    wanted = sorted(factor for factor in factors if factor < size)
    while wanted:
        wider = lcm(width, *wanted)
        largest = ceil(ceil(size / wider) / world) * wider
        if largest * world <= BALANCE * size:
            return wider
        wanted.pop()
    return width


def _widen(unit: Unit, size: int, width: int) -> Unit:
    """Return the unit with at least `width` elements; heads stay heads, since their kinds fix how they are cut."""
    if width == unit.size:
        return unit
    if unit.kind != "plain":
        raise PlanError(
            "LM-PLAN-UNITS",
            "a packed tensor cannot be cut at the borders of heads",
            why=f"heads have {unit.size} elements, packing needs multiples of {width}",
        )
    return msgspec.structs.replace(unit, size=width, count=-(-size // unit.segments // width))


def _parts(module: ModuleSpec, placements: Sequence[Placement]) -> tuple[int, ...]:
    """Return the sizes of the ranks' parts of the axis that the module's collective works on."""
    axis = "vocab" if "vocab" in module.axes else "in" if placements[0].collective_in == "slice" else "out"
    if axis not in module.axes:
        return ()
    return tuple(placement.size(axis, module.axes[axis]) for placement in placements)
