"""What an engine has done since it started. Written by the thread that steps, read by anybody."""

from __future__ import annotations

from collections import deque
from typing import Final

from loadmaster.serving.types import AdapterStats, FinishReason

MOST_NAMES: Final = 1000
"""Adapter names that are counted: clients may think up ever new ones, and the one with fewest requests is then forgotten."""


class Counters:
    """Plain numbers; the times to first token are handed out once."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self.cancelled = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.cached_tokens = 0
        self._adapters: dict[str, list[int]] = {}
        self._first: deque[float] = deque(maxlen=100_000)

    def begun(self, adapter: str, prompt_tokens: int) -> None:
        """Count a request that is taken in."""
        self.prompt_tokens += prompt_tokens
        counts = self._counts(adapter)
        counts[0] += 1
        counts[1] += prompt_tokens

    def cached(self, adapter: str, tokens: int) -> None:
        """Count what a request was spared."""
        self.cached_tokens += tokens
        self._counts(adapter)[2] += tokens

    def adapters(self) -> tuple[AdapterStats, ...]:
        """Return the counts of the names that requests have used, MOST_NAMES of them, the base's empty one first."""
        return tuple(
            AdapterStats(name=name, requests=counts[0], prompt_tokens=counts[1], cached_tokens=counts[2])
            for name, counts in sorted(self._adapters.copy().items())
        )

    def _counts(self, adapter: str) -> list[int]:
        if adapter not in self._adapters and len(self._adapters) >= MOST_NAMES:
            del self._adapters[min(self._adapters, key=lambda name: self._adapters[name][0])]
        return self._adapters.setdefault(adapter, [0, 0, 0])

    def ended(self, reason: FinishReason, first_token_seconds: float | None) -> None:
        """Count a request that has ended."""
        if reason == "cancelled":
            self.cancelled += 1
        elif reason == "error":
            self.failed += 1
        else:
            self.done += 1
        if first_token_seconds is not None:
            self._first.append(first_token_seconds)

    def take_first_token_seconds(self) -> tuple[float, ...]:
        """Return the times that came up since the last call."""
        return tuple(self._first.popleft() for _ in range(len(self._first)))
