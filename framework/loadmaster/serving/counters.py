"""What an engine has done since it started. Written by the thread that steps, read by anybody."""

from __future__ import annotations

from collections import deque

from loadmaster.serving.types import FinishReason


class Counters:
    """Plain numbers; the times to first token are handed out once."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self.cancelled = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.cached_tokens = 0
        self._first: deque[float] = deque(maxlen=100_000)

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
