"""Numbers as people read them: decimal bytes, rates, seconds and intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from loadmaster_hookspecs.sharding import Interval

_STEPS: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size(num_bytes: float) -> str:
    """Return a number of bytes with a decimal unit: `269.1 MB`; below a kilobyte exactly: `640 B`."""
    for factor, unit in _STEPS:
        # What rounds to a thousand of one unit is shown as one of the next.
        if round(num_bytes / factor * 1000, 1) >= 1000:
            digits = 2 if unit in {"GB", "TB"} else 1
            return f"{num_bytes / factor:.{digits}f} {unit}"
    return f"{num_bytes:.0f} B"


def rate(num_bytes: float, seconds: float) -> str:
    """Return bytes per second as `0.87 GB/s`, or `-` when no time has passed."""
    return f"{num_bytes / seconds / 1e9:.2f} GB/s" if seconds > 0 else "-"


def duration(seconds: float) -> str:
    """Return seconds as `0.84 s`, from a hundred seconds on as `2 min 05 s`."""
    if seconds < 100:
        return f"{seconds:.2f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in the right form: `1 file`, `272 tensors`, `49,152 rows`; `plural` is an irregular one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def span(intervals: Iterable[Interval], unit: int = 1) -> str:
    """Return half-open intervals as inclusive ranges of units: `[0, 384)` with `unit=64` is `0-5`; one unit is `2`."""
    parts = []
    for interval in intervals:
        first, last = interval.start // unit, -(-interval.stop // unit) - 1
        if last >= first:
            parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts) or "-"
