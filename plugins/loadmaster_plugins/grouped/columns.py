"""Which stored group every column of a rank's part belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from loadmaster_hookspecs.sharding import Interval

if TYPE_CHECKING:
    import torch


class Grouping(NamedTuple):
    """How a rank's columns share scales.

    With a `size`, local columns `g * size` to `(g + 1) * size` use the stored group `rows[g]`. With size 0 every column is a
    group of its own, as `rows` says: stored groups are cut, short or out of order. `rows` is None where it counts up from 0.
    """

    size: int
    groups: int
    rows: torch.Tensor | None

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the groups in use, in the order of columns, from `values` [..., stored groups]."""
        return values[..., : self.groups] if self.rows is None else values.index_select(-1, self.rows)


def ordered(ids: torch.Tensor, columns: int) -> Grouping:
    """Return the grouping of columns that name their group, `ids` [at least columns] integer."""
    return Grouping(0, columns, ids[:columns])


def consecutive(owned: Sequence[Interval], size: int, *, held_whole: bool, device: torch.device) -> Grouping:
    """Return the grouping of columns of which `size` in a row share a group.

    `held_whole` says that the rank holds all groups; otherwise it holds, for every interval it owns, the groups that the
    interval touches, one after the other. `device` is where the scales are.
    """
    import torch

    columns = sum(interval.size for interval in owned)
    used, base = [torch.empty(0, dtype=torch.int32)], 0
    for interval in owned:
        first, last = interval.start // size, -(-interval.stop // size)
        shift = 0 if held_whole else base - first
        used.append(torch.arange(interval.start, interval.stop, dtype=torch.int32) // size + shift)
        base += last - first
    rows = torch.cat(used).to(device)
    if not columns:
        return Grouping(0, 0, rows)
    if len(owned) == 1 and base == 1:
        size = columns
    elif any(interval.start % size or interval.size % size for interval in owned):
        return Grouping(0, columns, rows)
    rows = rows[::size].contiguous()
    counts_up = torch.equal(rows, torch.arange(len(rows), dtype=torch.int32, device=device))
    return Grouping(size, len(rows), None if counts_up else rows)
