"""Which batch to try next, when to stop, and which one is the best: decided from readings alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

SMALLEST: Final = 4
"""The first batch. Each one after it is twice as large."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch of equal requests did.

    `tokens_per_second` is the rate of all its requests together while every one of them draws, `step_seconds` the median of
    such a step. `first_token_seconds` is the median over the requests, which all come at once. `seconds` is what the reading
    took.
    """

    batch: int
    tokens_per_second: float
    step_seconds: float
    first_token_seconds: float
    seconds: float


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How far to go: `limit` requests at most, `capacity` of which keys and values have room for.

    A doubling that gains less than the share `gain` of tokens per second is the last one, and so is one after which twice its
    time would lead beyond `seconds`.
    """

    limit: int = 256
    capacity: int = 256
    gain: float = 0.1
    seconds: float = 120.0


class Stop(NamedTuple):
    """The end of the climb: the batch to use, and why there is no further reading."""

    choice: int
    why: str


def next_batch(readings: Sequence[Reading], bounds: Bounds) -> int | Stop:
    """Return the batch to read next, or what the readings so far come to.

    The smallest batch is read in any case. A batch is chosen over the one before it only if it gained enough. One that did not
    is read once more, because a moment in which the machine did something else looks the same.
    """
    if not readings:
        return min(SMALLEST, bounds.limit, bounds.capacity)
    steps = best(readings)
    last, spent = steps[-1], sum(reading.seconds for reading in readings)
    if len(steps) > 1:
        before = steps[-2]
        gained = last.tokens_per_second / before.tokens_per_second - 1
        if gained < bounds.gain:
            again = readings[-2].batch != last.batch and spent + last.seconds <= bounds.seconds
            return last.batch if again else Stop(before.batch, f"{last.batch} gain {gained:.0%}, less than {bounds.gain:.0%}")
    following = 2 * last.batch
    if following > bounds.limit:
        return Stop(last.batch, f"{following} are more than the limit of {bounds.limit}")
    if following > bounds.capacity:
        return Stop(last.batch, f"keys and values have room for {bounds.capacity}")
    if spent + 2 * last.seconds > bounds.seconds:
        return Stop(last.batch, f"{following} would take longer than the {bounds.seconds:g} s there are")
    return following


def best(readings: Sequence[Reading]) -> list[Reading]:
    """Return the fastest reading of every batch, the smallest batch first."""
    fastest: dict[int, Reading] = {}
    for reading in sorted(readings, key=lambda reading: reading.tokens_per_second):
        fastest[reading.batch] = reading
    return [fastest[batch] for batch in sorted(fastest)]
