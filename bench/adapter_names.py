"""Names that contestants, goals and page of the benchmark with adapters share."""

from __future__ import annotations

from typing import Final

ADAPTER_SIZES: Final = ("adapters", "tiny-adapters")
"""`adapters`: the demo's model; `tiny-adapters`: the tiny synthetic one, with few loads."""

INLINE: Final = "loadmaster-tp1"
WORKER: Final = "loadmaster-tp1-worker"
TWO: Final = "loadmaster-tp2"

EVERYONE: Final = (INLINE, WORKER, TWO)
