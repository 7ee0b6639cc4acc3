"""The engine's state for everybody who asks: times to first token are told once, so one place collects them."""

from __future__ import annotations

from typing import Final

from prometheus_client import Histogram

from loadmaster.serving.types import AdapterInfo, EngineStats, ServingEngine

FIRST_TOKEN_BUCKETS: Final = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
"""Upper bounds in seconds: from a small model's cached prompt to a long prompt in a long queue."""


class Monitor:
    """Reads the engine's statistics, and keeps what they tell only once."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine
        self.first_token = Histogram(
            "loadmaster_time_to_first_token_seconds",
            "Time from a request's arrival at the engine to its first token.",
            registry=None,
            buckets=FIRST_TOKEN_BUCKETS,
        )

    def read(self) -> EngineStats:
        """Return how the engine is doing now."""
        stats = self._engine.stats()
        for seconds in stats.first_token_seconds:
            self.first_token.observe(seconds)
        return stats

    def adapters(self) -> tuple[AdapterInfo, ...]:
        """Return the adapters that are loaded now."""
        return self._engine.adapters.list()
