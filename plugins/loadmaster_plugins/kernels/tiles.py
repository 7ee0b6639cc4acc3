"""Ranges of output rows that are decoded at a time, so that no kernel ever holds a whole float matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

ELEMENTS: Final = 1 << 20
"""Weights that are decoded at a time, 4 MiB as float32."""

STEP: Final = 64
"""Rows that a tile is a multiple of, the last one excepted: what packed formats put side by side is at most as many."""


def tiles(rows: int, columns: int, elements: int = ELEMENTS) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges that cover `rows`, of at most `elements` weights but at least `STEP` rows."""
    size = max(STEP, elements // max(1, columns) // STEP * STEP)
    for start in range(0, rows, size):
        yield start, min(start + size, rows)
