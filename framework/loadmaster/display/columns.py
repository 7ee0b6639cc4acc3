"""Columns of plain text, aligned by hand so that a pipe and a terminal get the same bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def align(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """Return one line per row, columns as wide as their widest cell; the columns in `right` are set flush right."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(_pad(row[at], width, at in right) for at, width in enumerate(widths)).rstrip() for row in rows]


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return `name  value` lines with aligned values; a value of several lines goes on below its first line."""
    lines = [(name, value.splitlines() or [""]) for name, value in pairs]
    return align([(name if at == 0 else "", line) for name, value in lines for at, line in enumerate(value)])


def _pad(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)
