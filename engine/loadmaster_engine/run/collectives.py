"""Putting the collectives that placements ask for around a model's modules, without touching the modules' code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from loadmaster_engine.run.agreement import Agreement
from loadmaster_engine.run.groups import Group
from loadmaster_hookspecs.agreeing import AGREE
from loadmaster_hookspecs.sharding import Interval, ModulePlacement

if TYPE_CHECKING:
    import torch


class ModelCollectives:
    """The group as one model's modules use it (`loadmaster_engine.run.groups.Group`), for a while by an agreement."""

    def __init__(self, group: Group) -> None:
        self.rank = group.rank
        self.world_size = group.world_size
        self._group = group
        self._used: Group | Agreement = group

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks."""
        return self._used.sum(tensor)

    def concat(self, tensor: torch.Tensor, parts: Sequence[int]) -> torch.Tensor:
        """Return the ranks' tensors joined."""
        return self._used.concat(tensor, parts)

    def close(self) -> None:
        """Leave the group."""
        self._group.close()

    @contextmanager
    def within(self, agreement: Agreement) -> Iterator[None]:
        """Let modules add up and join by an agreement."""
        self._used = agreement
        try:
            yield
        finally:
            self._used = self._group

    def offer_agreement(self, module: torch.nn.Module, device: str) -> None:
        """Let the model's own code ask whether all ranks say yes to something, where there are several."""
        if self.world_size > 1:
            setattr(module, AGREE, lambda votes: self._agree(votes, device))

    def _agree(self, votes: Sequence[bool], device: str) -> tuple[bool, ...]:
        import torch

        counts = self.sum(torch.tensor(votes, dtype=torch.float32, device=device))
        return tuple(count == self.world_size for count in counts.tolist())


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
