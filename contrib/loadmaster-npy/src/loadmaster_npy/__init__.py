"""A plugin for loadmaster: checkpoints that are folders of `.npy` files, to read, and a command to write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loadmaster.plugin import FormatLoader, hookimpl

from loadmaster_npy.format import NpyFolder

if TYPE_CHECKING:
    import click

loadmaster_api_version = 1


@hookimpl
def loadmaster_formats() -> Sequence[FormatLoader]:
    """Return the loader of folders of `.npy` files."""
    return [NpyFolder()]


@hookimpl
def loadmaster_commands() -> Sequence[click.Command]:
    """Return `loadmaster npy-export`. It is imported for the command line only, never in a worker."""
    from loadmaster_npy.export import npy_export

    return [npy_export]
