"""Tables and figures as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.summary import Span


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [_row(header), "|" + "---|" * len(header), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def middle(span: Span | None) -> str:
    """Return the median of seconds; empty where there is none."""
    return number(span.median if span else None, 2)


def spread(span: Span | None) -> str:
    """Return the median with its extremes."""
    return f"{span.median:.2f} ({span.low:.2f}..{span.high:.2f})" if span else ""


def megabytes(span: Span | None) -> str:
    """Return the median of bytes as megabytes."""
    return f"{span.median / 1e6:.0f}" if span else ""


def number(value: float | None, digits: int) -> str:
    """Return a number with so many digits after the point; empty for None."""
    return "" if value is None else f"{value:.{digits}f}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
