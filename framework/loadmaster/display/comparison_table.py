"""Variants of a model side by side."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.display.columns import align
from loadmaster.display.units import count, size
from loadmaster.inspection import Inspection
from loadmaster.perplexity import Perplexity


def render_comparison(found: Sequence[Inspection], scores: Sequence[Perplexity] = ()) -> str:
    """Return one row per variant: bytes, bits per weight, what is quantised, and perplexity where it was measured."""
    smallest = max((inspection.bytes_total for inspection in found), default=0)
    header = ["bytes", "of largest", "bits per weight", "quantised"]
    rows = [["model", *header, *(["perplexity"] if scores else [])]]
    for at, inspection in enumerate(found):
        share = f"{100 * inspection.bytes_total / smallest:.1f} %" if smallest else "-"
        row = [inspection.source, size(inspection.bytes_total), share, f"{inspection.bits_per_weight:.2f}", _kinds(inspection)]
        rows.append([*row, *([f"{scores[at].value:.3f}"] if scores else [])])
    lines = align(rows, right=(1, 2, 3, 5))
    return "\n".join([*lines, *([f"perplexity over {count(scores[0].tokens, 'token')} of the text"] if scores else [])])


def _kinds(inspection: Inspection) -> str:
    return ", ".join(f"{number} x {kind}" for kind, number in inspection.quantised.items()) or "-"
