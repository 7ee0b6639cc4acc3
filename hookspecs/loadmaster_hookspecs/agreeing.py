"""How a model's own code asks the other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

AGREE: Final = "loadmaster_agree"
"""Attribute of a model's outermost module: its `Agree`, where the model is divided among several ranks."""


class Agree(Protocol):
    """Asks whether all ranks say yes. They all ask at the same place, and about as much."""

    def __call__(self, votes: Sequence[bool]) -> tuple[bool, ...]:
        """Return for each of this rank's votes whether all ranks vote so."""
        ...
