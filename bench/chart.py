"""A bar chart as a small SVG: one bar per contestant, its median as the length, minimum to maximum as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from bench.summary import Span

ROW: Final = 22
NAMES: Final = 230
BARS: Final = 520
FIGURES: Final = 70
OWN: Final = "#2563a8"
OTHER: Final = "#9aa5b1"
BARE: Final = "#d9a441"


def bar_chart(panels: Sequence[tuple[str, Mapping[str, Span]]]) -> str:
    """Return an SVG with one panel per title; the spans are seconds, drawn on a linear scale of their own."""
    parts: list[str] = []
    top = 10
    for title, spans in panels:
        drawn, top = _panel(title, spans, top)
        parts.extend(drawn)
    width = NAMES + BARS + FIGURES
    style = "text{font:13px sans-serif;fill:#1f2933}.t{font-weight:bold;font-size:14px}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}" role="img">'
    ground = f'<rect width="{width}" height="{top}" fill="#ffffff"/>'
    return "\n".join((head, f"<style>{style}</style>", ground, *parts, "</svg>")) + "\n"


def _panel(title: str, spans: Mapping[str, Span], top: int) -> tuple[list[str], int]:
    longest = max((span.high for span in spans.values()), default=0.0) or 1.0
    parts = [f'<text class="t" x="10" y="{top + 16}">{escape(title)}</text>']
    top += 28
    for name, span in sorted(spans.items(), key=lambda item: item[1].median):
        middle = top + ROW // 2
        length = BARS * span.median / longest
        low, high = (NAMES + BARS * value / longest for value in (span.low, span.high))
        parts += [
            f'<text x="{NAMES - 8}" y="{middle + 4}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{NAMES}" y="{top + 3}" width="{max(length, 1):.1f}" height="{ROW - 6}" fill="{_colour(name)}"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#1f2933" stroke-width="1.5"/>',
            f'<text x="{max(high, NAMES + length) + 6:.1f}" y="{middle + 4}">{span.median:.2f}</text>',
        ]
        top += ROW
    return parts, top + 14


def _colour(name: str) -> str:
    if name.startswith("loadmaster"):
        return OWN
    return BARE if name.startswith(("floor", "raw")) else OTHER
