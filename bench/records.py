"""What the benchmark keeps: every single measurement, and what it was made with and on."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

import msgspec

Condition = Literal["hot", "cold", "second"]
"""State of the page cache at the start: the model's files in it, out of it, or as a cold run of the same contestant left it."""

Release = Literal["load", "start", "off"]
"""When the ballast is freed: when the contestant is about to take memory for weights, before its start, or there is none."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The one line of JSON that a contestant prints."""

    bench: int
    seconds: dict[str, float]
    nbytes: int
    memory: dict[str, int]
    detail: dict[str, float] = {}
    tokens: list[int] = []
    sums: dict[str, dict[str, int]] | None = None
    notes: list[str] = []


class BallastUse(msgspec.Struct, frozen=True, kw_only=True):
    """How much memory was held, how much was wanted, when it was to be freed, and whether it was."""

    nbytes: int
    wanted: int
    release: Release
    released: bool


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one contestant.

    `seconds` has durations (`load`, `touch`) and times since the process's start without waiting for the ballast (`imported`,
    `workers_ready`, `first_token`). `memory` is bytes after loading. `resident_*` is the part of the files in the page cache.
    `error` is empty when the run counts; such runs have no figures.
    """

    contestant: str
    condition: Condition
    round: int
    error: str = ""
    seconds: dict[str, float] = {}
    nbytes: int = 0
    memory: dict[str, int] = {}
    detail: dict[str, float] = {}
    tokens: list[int] = []
    notes: list[str] = []
    sums: str = ""
    ballast: BallastUse | None = None
    resident_before: float = 0.0
    resident_after: float = 0.0
    wall: float = 0.0


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """A goal with its limit, what was measured (None: it was not), and in which words."""

    text: str
    limit: float
    measured: float | None
    at_least: bool = False
    how: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None when it was not measured."""
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    size: str
    rounds: int
    peers: tuple[str, ...]
    conditions: tuple[Condition, ...]
    ballast: Release


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole benchmark. Measurements of round 0 are the check round: their times do not count."""

    version: int = 1
    date: str
    settings: Settings
    machine: dict[str, str]
    model_bytes: int
    expected_sums: str
    measurements: tuple[Measurement, ...]
    goals: tuple[Goal, ...]
    imports: tuple[tuple[str, float], ...]
    imports_total: float
    about: dict[str, str]


def sums_digest(sums: dict[str, dict[str, int]]) -> str:
    """Return a digest over the sums of all tensors."""
    every: dict[str, Any] = {**sums["whole"], **sums["parts"]}
    return hashlib.sha256(json.dumps(sorted(every.items())).encode()).hexdigest()[:16]
