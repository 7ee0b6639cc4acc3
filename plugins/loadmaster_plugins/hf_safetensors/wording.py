"""How long lists and foreign names appear in messages."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 4
LONGEST = 120


def fold(items: Sequence[str]) -> str:
    """Return the first few items and how many more there are: `a, b, c, d and 96 more`."""
    text = ", ".join(items[:SHOWN])
    return f"{text} and {len(items) - SHOWN} more" if len(items) > SHOWN else text


def quoted(name: str) -> str:
    """Return a name from a file in quotes, control characters escaped, cut to a readable length."""
    text = ascii(name)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}...' ({len(name)} characters)"


def count(number: int, noun: str) -> str:
    """Return `1 file`, `3 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
