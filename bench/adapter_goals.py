"""The goals of hot loading: right answers, steps that stay short, and memory that comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.adapter_names import EVERYONE
from bench.records import Goal, Measurement
from bench.summary import Rounds, detail

LIMITS: Final = {
    "wrong": (0.0, "failed or changed answers", "all answers, compared token by token"),
    "ratio_median": (1.5, "time between tokens during a load, median", "during a load / without, in one run"),
    "ratio_p95": (1.5, "time between tokens during a load, 95th percentile", "during a load / without, in one run"),
    "memory_off": (0.01, "memory of all processes after the loads, off what it was", "|after / before - 1|, sum of PSS"),
}
"""Limit, words, and what is compared, by the figure."""


def adapter_goals(measurements: Sequence[Measurement]) -> tuple[Goal, ...]:
    """Return all goals in order."""
    rounds = Rounds(measurements)
    return tuple(
        Goal(text=f"{name}: {text}", limit=limit, measured=span.median if span else None, how=how)
        for name in EVERYONE
        for figure, (limit, text, how) in LIMITS.items()
        for span in [rounds.span(name, "hot", detail(figure))]
    )
