"""Names of contestants with a 4-bit model, as goals and tables use them."""

from __future__ import annotations

from typing import Final

RANKS: Final = (1, 2)
"""The tensor parallel sizes that are measured."""

INT4_MODES: Final = ("direct", "auto")
"""Read modes that `torch-int4` is measured in. The first copies all bytes, as the floor does."""


def floor_name(tp: int) -> str:
    """Return the name of the floor for `tp` ranks."""
    return f"floor-tp{tp}"


def int4_name(tp: int, mode: str = "direct") -> str:
    """Return the name of loadmaster with torch's int4 product."""
    return f"loadmaster-tp{tp}-int4-{mode}"


def dequant_name(tp: int) -> str:
    """Return the name of loadmaster with the kernel `dequant`."""
    return f"loadmaster-tp{tp}-dequant-mapped"


def bf16_name(tp: int) -> str:
    """Return the name of loadmaster with the plain model."""
    return f"loadmaster-tp{tp}-bf16"
