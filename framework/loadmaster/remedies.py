"""What would make weights fit that do not: remedies that are enough, by the plan's own numbers."""

from __future__ import annotations

from typing import Final

from loadmaster_hookspecs.dtypes import itemsize
from loadmaster_hookspecs.plan import LoadPlan

FOUR_BITS: Final = 4.5 / 8
"""Bytes per weight of a matrix of 4-bit codes, with a scale and a zero point for every 64 to 128 of them."""


def narrower(plan: LoadPlan, room: int) -> list[str]:
    """Return the hint for weights that must fit into `room` bytes: another element type, or else a quantised variant."""
    weights = sum(rank.bytes for rank in plan.ranks)
    if not weights or any(rank.packed for rank in plan.ranks):
        return []
    if plan.dtype == "F32" and weights / 2 <= room:
        return ["use --dtype bfloat16"]
    small = _quantised(plan, weights)
    return [f"a variant with 4-bit weights would fit: it takes about {small / 1e9:.2f} GB"] if small <= room else []


def _quantised(plan: LoadPlan, weights: int) -> float:
    """Return the bytes of the weights when all linear layers had 4 bits per weight."""
    roles = [(role, nbytes) for rank in plan.ledger.roles for role, nbytes in rank.items()]
    linear = sum(nbytes for role, nbytes in roles if role == "linear") / max(1, sum(nbytes for _, nbytes in roles))
    return weights * (1 - linear + linear * FOUR_BITS / itemsize(plan.dtype))
