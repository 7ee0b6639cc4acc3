"""Hugging Face checkpoints: `.safetensors` files, their shard index and `config.json`."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.formats import FormatLoader
from loadmaster_plugins.hf_safetensors.loader import HfSafetensors


@hookimpl
def loadmaster_formats() -> Sequence[FormatLoader]:
    """Return the loader of Hugging Face safetensors checkpoints."""
    return [HfSafetensors()]
