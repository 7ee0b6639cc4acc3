"""The bound of what a rank takes for a while."""

from __future__ import annotations

from typing import Final

SCRATCH: Final = 16 << 20
"""Bytes of temporary memory that transforms, ranges from which runs are picked, and tiles of codes may take on one rank."""
