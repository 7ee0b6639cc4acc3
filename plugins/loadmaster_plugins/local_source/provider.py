"""Turns what a user typed into a local source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from loadmaster_hookspecs.errors import UsageError
from loadmaster_hookspecs.findings import Match
from loadmaster_plugins.local_source.source import LocalSource

TENSOR_SUFFIX: Final = ".safetensors"


class LocalProvider:
    """Opens folders and single `.safetensors` files by path."""

    @property
    def name(self) -> str:
        """The name of this kind of source."""
        return "local"

    def claim(self, uri: str) -> Match | None:
        """Claim what exists here, and weakly any address without a scheme, so that a mistyped path is explained."""
        if "\0" in uri or "://" in uri:
            return None
        path = _absolute(uri)
        if path.is_dir():
            return Match(score=0.9, evidence=f"{path} is a folder on this machine")
        if path.suffix == TENSOR_SUFFIX and os.path.lexists(path):
            return Match(score=0.9, evidence=f"{path} is a safetensors file on this machine")
        return Match(score=0.1, evidence=f"{path} would be a path on this machine")

    def open(self, uri: str) -> LocalSource:
        """Open a folder or one file in it.

        Raises UsageError when the path does not exist or is a file of another kind; a link that leads nowhere is an
        IntegrityError when the file is read, as for links inside a folder.
        """
        path = _absolute(uri)
        if any("\ud800" <= letter <= "\udfff" for letter in str(path)):
            raise UsageError(
                "LM-SOURCE-NAME",
                "the path is not UTF-8 and cannot be passed on to other processes",
                where={"path": str(path)},
                hints=("rename the folder, or reach it through a link with another name",),
            )
        if path.is_dir():
            return LocalSource(path)
        if not os.path.lexists(path):
            raise UsageError(
                "LM-SOURCE-MISSING",
                "there is no such model folder or file",
                where={"path": str(path)},
                why=_nearest_folder(path),
                hints=("check the path; loadmaster opens local folders and never downloads",),
            )
        if path.suffix != TENSOR_SUFFIX:
            raise UsageError(
                "LM-SOURCE-KIND",
                "the path is neither a folder nor a .safetensors file",
                where={"path": str(path)},
                hints=(f"give the folder that holds the model: {path.parent}",),
            )
        return LocalSource(path.parent, only=path.name)


def _absolute(uri: str) -> Path:
    """Return the path without resolving links: the hub's snapshot folders are recognised by their own names."""
    return Path(os.path.abspath(os.path.expanduser(uri)))


def _nearest_folder(path: Path) -> str:
    """Say how much of a missing path does exist."""
    existing = next((parent for parent in path.parents if parent.is_dir()), None)
    return f"{existing} exists and has no {path.relative_to(existing).parts[0]!r}" if existing else ""
