"""The climb over batch sizes: what is read, when it stops, and what is chosen, for curves of any shape."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.tuning.climb import SMALLEST, Bounds, Reading, Stop, best, next_batch

RATES = st.lists(st.floats(1, 1e5), min_size=20, max_size=20)


def reading(batch: int, rate: float, seconds: float = 1.0) -> Reading:
    return Reading(batch=batch, tokens_per_second=rate, step_seconds=batch / rate, first_token_seconds=0.0, seconds=seconds)


def climb(rate: Callable[[int], float], bounds: Bounds, seconds: float = 1.0) -> tuple[list[Reading], Stop]:
    readings: list[Reading] = []
    while not isinstance(batch := next_batch(readings, bounds), Stop):
        readings.append(reading(batch, rate(batch), seconds))
    return readings, batch


@given(rates=RATES, limit=st.integers(1, 5000), capacity=st.integers(1, 5000), gain=st.floats(0, 1))
def test_every_step_up_to_the_choice_gained_enough(rates: Sequence[float], limit: int, capacity: int, gain: float) -> None:
    bounds = Bounds(limit=limit, capacity=capacity, gain=gain, seconds=1e9)
    readings, stop = climb(lambda batch: rates[batch.bit_length()], bounds)
    batches = [each.batch for each in best(readings)]
    first = min(SMALLEST, limit, capacity)
    assert batches == [first << doubling for doubling in range(len(batches))]
    assert max(batches) <= min(limit, capacity)
    chosen = batches.index(stop.choice)
    pairs = itertools.pairwise(best(readings))
    steps = [later.tokens_per_second / earlier.tokens_per_second - 1 for earlier, later in pairs]
    assert all(step >= gain for step in steps[:chosen])
    # Nothing is read beyond the first step that does not gain enough, and no such step is missing without a reason.
    assert all(step < gain for step in steps[chosen:])
    assert len(steps) - chosen in (0, 1)
    assert len(readings) - len(batches) == len(steps) - chosen
    assert len(steps) > chosen or 2 * stop.choice > min(limit, capacity)


@given(doublings=st.integers(0, 8), gain=st.floats(0.01, 0.99))
def test_a_rate_that_grows_up_to_a_batch_chooses_that_batch(doublings: int, gain: float) -> None:
    full = SMALLEST << doublings
    readings, stop = climb(lambda batch: 10.0 * min(batch, full), Bounds(limit=10_000, capacity=10_000, gain=gain, seconds=1e9))
    assert stop.choice == full
    assert readings[-1].batch == 2 * full


@given(doublings=st.integers(1, 6), moment=st.integers(1, 6), share=st.floats(0.01, 1))
def test_a_single_moment_of_other_work_does_not_end_the_climb(doublings: int, moment: int, share: float) -> None:
    taken: list[int] = []

    def rate(batch: int) -> float:
        taken.append(batch)
        return min(batch, SMALLEST << doublings) * (share if len(taken) == moment + 1 else 1.0)

    stop = climb(rate, Bounds(limit=10_000, capacity=10_000, seconds=1e9))[1]
    # A slow reading of the last batch that is worth it makes the next one look better.
    assert stop.choice in {SMALLEST << doublings, SMALLEST << doublings + (moment == doublings)}


@given(rates=RATES, seconds=st.floats(0, 100), each=st.floats(0.1, 10))
def test_time_ends_the_climb(rates: Sequence[float], seconds: float, each: float) -> None:
    bounds = Bounds(limit=10**6, capacity=10**6, gain=-1.0, seconds=seconds)
    readings, stop = climb(lambda batch: rates[batch.bit_length() % 20], bounds, each)
    assert len(readings) == 1 or sum(one.seconds for one in readings) <= seconds
    assert len(best(readings)) == len(readings)
    assert f"{2 * stop.choice} " in stop.why


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (Bounds(limit=16), "32 are more than the limit of 16"),
        (Bounds(capacity=31), "keys and values have room for 31"),
        (Bounds(seconds=4.5), "32 would take longer than the 4.5 s there are"),
    ],
)
def test_the_reason_is_told(bounds: Bounds, why: str) -> None:
    assert climb(float, bounds)[1] == Stop(16, why)


def test_a_gain_that_is_too_small_is_told() -> None:
    assert climb(lambda batch: 100.0 if batch < 16 else 103.0, Bounds(gain=-1, limit=8))[1].choice == 8
    readings = [reading(4, 50.0), reading(8, 100.0), reading(16, 90.0)]
    assert next_batch(readings, Bounds()) == 16
    assert next_batch([*readings, reading(16, 103.0)], Bounds()) == Stop(8, "16 gain 3%, less than 10%")
    assert next_batch([*readings, reading(16, 120.0)], Bounds()) == 32
    assert next_batch(readings, Bounds(seconds=3.5)) == Stop(8, "16 gain -10%, less than 10%")
