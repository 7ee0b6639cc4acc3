"""Putting the collectives that placements ask for around a model's modules, without touching the modules' code."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from loadmaster_engine.run.groups import Group
from loadmaster_hookspecs.sharding import Interval, ModulePlacement

if TYPE_CHECKING:
    import torch


def attach(module: torch.nn.Module, placements: Sequence[ModulePlacement], group: Group) -> None:
    """Attach what every placed module needs: its input cut or shifted, its output summed or joined."""
    for placed in placements:
        target = module.get_submodule(placed.path)
        placement = placed.placement
        if placement.collective_in == "slice":
            start = [0, *accumulate(placed.parts)][group.rank]
            _slice_input(target, start, placed.parts[group.rank])
        elif placement.collective_in == "shift_ids":
            _shift_ids(target, placement.owns["vocab"][0])
        if placement.collective_out == "sum":
            target.register_forward_hook(lambda _module, _args, output: group.sum(output))
        elif placement.collective_out == "concat":
            _join_output(target, group, placed.parts, placement.total)


def _slice_input(target: torch.nn.Module, start: int, size: int) -> None:
    target.register_forward_pre_hook(lambda _module, args: (args[0][..., start : start + size], *args[1:]))


def _shift_ids(target: torch.nn.Module, owned: Interval) -> None:
    """Look up the rank's own rows only: other ids give zeros, which the sum over ranks then fills in."""
    import torch

    # An index beyond the rank's own rows would fail torch's check, and padding rows matter to training only.
    if isinstance(target, torch.nn.Embedding):
        target.padding_idx = None
    foreign: list[torch.Tensor] = []

    def shift(_module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        ids = args[0]
        outside = (ids < owned.start) | (ids >= owned.stop)
        foreign.append(outside)
        return ((ids - owned.start).masked_fill(outside, 0), *args[1:])

    def blank(_module: torch.nn.Module, _args: object, output: torch.Tensor) -> torch.Tensor:
        return output.masked_fill(foreign.pop().unsqueeze(-1), 0)

    target.register_forward_pre_hook(shift)
    target.register_forward_hook(blank)


def _join_output(target: torch.nn.Module, group: Group, parts: Sequence[int], total: int) -> None:
    """Join the ranks' outputs and drop the padding, which lies at the end of the last parts that have any data."""
    target.register_forward_hook(lambda _module, _args, output: group.concat(output, parts)[..., :total])
