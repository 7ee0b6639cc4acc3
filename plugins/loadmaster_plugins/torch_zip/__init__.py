"""Adapters as `torch.save` writes them, `adapter_model.bin`: read without running or importing anything that they name."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.formats import FormatLoader
from loadmaster_plugins.torch_zip.loader import TorchZip


@hookimpl
def loadmaster_formats() -> Sequence[FormatLoader]:
    """Return the loader of adapters in torch's zip format."""
    return [TorchZip()]
