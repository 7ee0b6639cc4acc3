"""What a comparison found, and when it counts as agreement."""

from __future__ import annotations

from typing import Final

import msgspec

LOGITS_LIMIT: Final = 2e-3
"""The largest difference from the producer's logits, beside the largest of them."""

RANKS_LIMIT: Final = 1e-5
"""The same for several ranks beside one."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Decoded matrices: how many, how many differ at all, and the largest difference beside its matrix's largest weight."""

    matrices: int
    different: int
    worst: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Differences in decoded weights and in logits, and in the logits of several ranks beside one."""

    weights: Weights
    logits: float
    ranks: dict[int, float]

    @property
    def agrees(self) -> bool:
        """Whether weights are equal and logits within the limits."""
        return self.same_over_ranks and self.logits <= LOGITS_LIMIT and self.weights.different == 0

    @property
    def same_over_ranks(self) -> bool:
        """Whether several ranks give what one gives."""
        return all(error <= RANKS_LIMIT for error in self.ranks.values())


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One case: what was found, or why nothing could be.

    `versions` are those of the producer's environment, `known` is why its weights differ where they are known to.
    """

    case: str
    producer: str
    outcome: Outcome | None = None
    error: str = ""
    known: str = ""
    versions: dict[str, str] = {}

    @property
    def fine(self) -> bool:
        """Whether the case agrees, or differs where it is known to and is the same over any number of ranks."""
        found = self.outcome
        return found is not None and (found.agrees or (bool(self.known) and found.same_over_ranks))


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    date: str
    versions: dict[str, str]
    findings: tuple[Finding, ...]
