"""Picking the elements that a rank owns out of the packed words that it holds.

A word at the border of a rank's part also holds elements that the rank does not own. `AxisMap.kept` says which to leave out;
the functions here unpack no more words than a tile needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Run = tuple[int, int]
"""Half-open interval of elements of an unpacked dimension."""


def clip(runs: Sequence[Run], start: int, stop: int) -> list[Run]:
    """Return where the owned elements `start` to `stop` lie, given where all owned elements lie."""
    found: list[Run] = []
    before = 0
    for low, high in runs:
        first, last = max(start - before, 0), min(stop - before, high - low)
        if first < last:
            found.append((low + first, low + last))
        before += high - low
    return found


def pick(runs: Sequence[Run], per: int, unpack: Callable[[int, int], torch.Tensor], dim: int) -> torch.Tensor:
    """Return the elements in `runs` along `dim`.

    `unpack(first, last)` returns the elements of the packed units `first` to `last` along `dim`, `per` of each.
    """
    import torch

    parts = []
    for low, high in runs:
        first = low // per
        parts.append(unpack(first, -(-high // per)).narrow(dim, low - first * per, high - low))
    if not parts:
        return unpack(0, 0)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
