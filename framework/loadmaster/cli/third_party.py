"""A quick look for plugins of other distributions, for paths that cannot afford to build the plugin host."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cache

_METADATA = re.compile(r"(?P<name>.+?)(-[^-]+)*\.(dist|egg)-info")


@cache
def third_party_distributions() -> tuple[str, ...]:
    """Return the distributions on `sys.path`, apart from loadmaster, that have entry points in its group.

    Reads a few hundred bytes per installed distribution instead of importing `importlib.metadata`, which alone would take half
    of the time that `--help` may take. What this look misses (packages inside archives) is still found by name.
    """
    return tuple(sorted({name for folder in sys.path for name in _inside(folder or os.curdir)}))


def _inside(folder: str) -> Iterator[str]:
    try:
        entries = os.listdir(folder)
    except OSError:
        return
    for entry in entries:
        match = _METADATA.fullmatch(entry)
        if match and match["name"] != "loadmaster" and _has_plugins(os.path.join(folder, entry)):
            yield match["name"]


def _has_plugins(metadata: str) -> bool:
    try:
        with open(os.path.join(metadata, "entry_points.txt"), encoding="utf-8", errors="replace") as stream:
            return any(line.strip() == "[loadmaster]" for line in stream)
    except OSError:
        return False
