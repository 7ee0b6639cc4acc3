"""The sizes of one AWQ matrix, and how many groups the layouts gemv and gemv_fast leave room for."""

from __future__ import annotations

from typing import NamedTuple

from loadmaster_hookspecs.findings import Finding
from loadmaster_plugins.grouped.evidence import Evidence

NIBBLES = 8
"""4-bit values in a 32-bit word."""

ROUNDED_FOR = {32: 4, 64: 2}
"""Group sizes for which words of zero points come in fours and twos."""


class AwqSize(NamedTuple):
    """Rows, columns and group size of a matrix, and what there is to say about them."""

    rows: int
    columns: int
    group_size: int
    findings: tuple[Finding, ...] = ()


def zero_words(columns: int, group_size: int) -> int:
    """Return the words of zero points per row. Source: `calculate_zeros_width` of autoawq 0.2.9."""
    words = -(-(columns // group_size) // NIBBLES)
    unit = ROUNDED_FOR.get(group_size, 1)
    return -(-words // unit) * unit


def roomy_group_size(evidence: Evidence, columns: int, words: int, said: int | None) -> int:
    """Return the group size where shapes only tell how many groups there is room for.

    Raises IntegrityError LM-AWQ-GROUPS when the configuration does not say it, or the room is not what autoawq leaves for it.
    """
    size = columns if said == -1 else said
    if size is None or size < min(ROUNDED_FOR) or columns % size or zero_words(columns, size) != words:
        stated = "does not say the group size" if said is None else f"says groups of {said}"
        why = f"room for {words * NIBBLES} groups of {columns} columns, and the configuration {stated}"
        raise evidence.fault("GROUPS", "scales", "the number of scales fits no group size", why)
    return size
