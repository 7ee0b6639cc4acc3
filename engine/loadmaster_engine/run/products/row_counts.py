"""Products for few different numbers of rows.

The library that multiplies bfloat16 makes code for every shape that it meets, and keeps it: 0.1 to 0.7 MB and some
milliseconds per matrix shape and number of rows (measured). A step has any number of rows, so serving would grow by hundreds of
megabytes and stumble over every new number. Rows are therefore filled up with zeros to one of few numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

TILE: Final = 16
"""Rows that AMX multiplies at once; fewer are bound by reading the matrix."""


def padded_count(count: int) -> int:
    """Return the number of rows that `count` rows are filled up to.

    Powers of two up to a tile, whole tiles up to eight, and then four numbers between two powers of two: 28 up to 2048.
    """
    if count <= TILE:
        return 1 << (count - 1).bit_length() if count else 0
    unit = max(TILE, 1 << ((count - 1).bit_length() - 3))
    return -(-count // unit) * unit


def padded(rows: torch.Tensor) -> torch.Tensor:
    """Return `rows` [count, width] and zeros below."""
    import torch

    missing = padded_count(len(rows)) - len(rows)
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows
