"""Checkpoints on this machine: a model folder, or one `.safetensors` file. Never writes, never connects."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.sources import SourceProvider
from loadmaster_plugins.local_source.provider import LocalProvider


@hookimpl
def loadmaster_sources() -> Sequence[SourceProvider]:
    """Return the provider of local folders and files."""
    return [LocalProvider()]
