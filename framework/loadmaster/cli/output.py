"""Everything that goes to standard output, and files that a command writes."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from loadmaster_hookspecs import UsageError


def print_document(**content: object) -> None:
    """Print the one JSON document of a command that succeeded: `{"ok": true, ...}`. Accepts structs and plain data."""
    click.echo(msgspec.json.encode({"ok": True, **content}).decode())


def write_file(path: Path, text: str) -> None:
    """Write `text` to a file that the user named. Raises UsageError when that cannot be done."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "LM-CLI-OUTPUT",
            f"cannot write {path}",
            why=str(error.strerror),
            hints=("name a file in a folder you may write to",),
        ) from error
