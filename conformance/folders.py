"""Folders in the cache that are complete or absent: they are built aside and renamed when done."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """Return where environments and models are kept: below `XDG_CACHE_HOME`, else below `~/.cache`."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "loadmaster" / "conformance"


def keyed(name: str, *facts: str) -> str:
    """Return a folder's name that changes with the facts that decide its content."""
    return f"{name}-{hashlib.sha256(chr(10).join(facts).encode()).hexdigest()[:8]}"


def made(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`, after `make` has filled an empty one in its place where it does not exist."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as scratch:
        fresh = Path(scratch) / folder.name
        fresh.mkdir()
        make(fresh)
        fresh.rename(folder)
    return folder
