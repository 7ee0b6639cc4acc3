"""Long lists of names, folded so that a person can read them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.")


def layer_of(name: str) -> int | None:
    """Return the layer index in a dotted name, or None where there is none."""
    match = _LAYER.search(name)
    return int(match.group(1)) if match else None


def fold(names: Sequence[str], limit: int = 5) -> str:
    """Return the first few names and how many follow."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def count_by_layer(names: Iterable[str]) -> str:
    """Return `9 of layer 2, 9 of layer 3, 1 outside the layers` for a set of parameter names."""
    counts = Counter(layer_of(name) for name in names)
    outside = counts.pop(None, 0)
    parts = [f"{count} of layer {layer}" for layer, count in sorted(counts.items(), key=lambda item: item[0] or 0)]
    if outside:
        parts.append(f"{outside} outside the layers")
    return fold(parts, 8)
