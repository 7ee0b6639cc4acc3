"""Everything that goes to standard output, and files that a command writes."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from loadmaster_hookspecs import UsageError


def print_document(**content: object) -> None:
    """Print the one JSON document of a command that succeeded: `{"ok": true, ...}`. Accepts structs and plain data."""
    click.echo(msgspec.json.encode({"ok": True, **content}).decode())


def check_writable(path: Path) -> None:
    """Raise UsageError before any work is done when a file could not be written at its end. Creates nothing."""
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK):
        raise _unwritable(path, "the folder does not exist" if not target.exists() else "permission denied")


def write_file(path: Path, text: str) -> None:
    """Write `text` to a file that the user named. Raises UsageError when that cannot be done."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from error


def _unwritable(path: Path, why: str) -> UsageError:
    hints = ("name a file in a folder you may write to",)
    return UsageError("LM-CLI-OUTPUT", f"cannot write {path}", why=why, hints=hints)
