"""Figures from measurements: medians, spans, and ratios that are taken within a round before the median is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final

import msgspec

from bench.records import Condition, Measurement

Value = Callable[[Measurement], float | None]
"""Takes one figure out of a measurement; None where it has none."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A median with its extremes, over `count` rounds."""

    median: float
    low: float
    high: float
    count: int


def seconds(name: str) -> Value:
    """Return the figure `seconds[name]`."""
    return lambda measurement: measurement.seconds.get(name)


def load_and_touch(measurement: Measurement) -> float | None:
    """Return the seconds until every page is there; None where pages were not touched."""
    touching = measurement.seconds.get("touch")
    return None if touching is None else measurement.seconds["load"] + touching


def memory(name: str) -> Value:
    """Return the figure `memory[name]` in bytes."""
    return lambda measurement: measurement.memory.get(name)


def detail(name: str) -> Value:
    """Return the figure `detail[name]`."""
    return lambda measurement: measurement.detail.get(name)


FIGURES: Final[dict[str, Value]] = {
    "imported": seconds("imported"),
    "load": seconds("load"),
    "touch": seconds("touch"),
    "load+touch": load_and_touch,
    "workers_ready": seconds("workers_ready"),
    "first_token": seconds("first_token"),
    "pss": memory("pss"),
    "peak_rss": memory("peak_rss"),
    "tokens_per_second": detail("tokens_per_second"),
}
"""The figures by name. Times in seconds, memory in bytes."""


class Rounds:
    """The measurements that count: without errors and without the check round."""

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._good = [one for one in measurements if one.round > 0 and not one.error]

    def names(self, condition: Condition) -> list[str]:
        """Return the contestants that were measured in a condition, in order of appearance."""
        return list(dict.fromkeys(one.contestant for one in self._good if one.condition == condition))

    def values(self, contestant: str, condition: Condition, value: Value) -> dict[int, float]:
        """Return a figure by round."""
        found = {}
        for one in self._good:
            if (one.contestant, one.condition) == (contestant, condition) and (figure := value(one)) is not None:
                found[one.round] = figure
        return found

    def span(self, contestant: str, condition: Condition, value: Value) -> Span | None:
        """Return median, minimum and maximum of a figure, or None where it was never measured."""
        found = list(self.values(contestant, condition, value).values())
        if not found:
            return None
        return Span(median=median(found), low=min(found), high=max(found), count=len(found))

    def ratio(
        self, contestant: str, baseline: str, condition: Condition, value: Value, baseline_value: Value | None = None
    ) -> float | None:
        """Return the median over rounds of a figure divided by the baseline's of the same round; None without such a round."""
        own = self.values(contestant, condition, value)
        other = self.values(baseline, condition, baseline_value or value)
        ratios = [own[number] / other[number] for number in own if other.get(number)]
        return median(ratios) if ratios else None

    def best(self, names: Sequence[str], condition: Condition, value: Value) -> str | None:
        """Return whoever of `names` has the lowest median of a figure, or None where no one has any."""
        spans = {name: span for name in names if (span := self.span(name, condition, value))}
        return min(spans, key=lambda name: spans[name].median) if spans else None
