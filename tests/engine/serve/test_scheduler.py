"""Continuous batching over tiny pools: no block is lost, nobody sees another's content, starves, or gets tokens of others."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence as Tokens
from typing import Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster_engine.serve.messages import DrawnToken, RowSampling, Step
from loadmaster_engine.serve.scheduler import Limits, Outcome, Scheduler
from loadmaster_engine.serve.sequence import Sequence, Wish

CONTENTS: Final = {0: "", 1: "a", 2: "b", 3: "a"}
"""What the adapters of these numbers are: 1 and 3 are the same one, loaded twice."""


def next_token(tokens: Tokens[int]) -> int:
    """Return what the pretended model says after `tokens`. Few values, so that beginnings repeat."""
    return sum((place + 1) * token for place, token in enumerate(tokens)) % 3


def alone(prompt: Tokens[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class PretendWorker:
    """Keeps tokens and their adapter where a rank keeps keys and values, and draws from what it finds there."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size = size
        self.memory: list[list[tuple[int, str] | None]] = [[None] * size for _ in range(blocks)]

    def run(self, step: Step, holders: Counter[int]) -> list[DrawnToken]:
        for source, target in step.copies:
            self.memory[target] = list(self.memory[source])
        for row in step.rows:
            assert len(row.table) == -(-(row.start + len(row.tokens)) // self.size)
            for place, token in enumerate(row.tokens, row.start):
                block = row.table[place // self.size]
                assert holders[block] == 1, "written into a block that others hold"
                self.memory[block][place % self.size] = (token, CONTENTS[row.adapter])
        drawn = []
        for row in step.rows:
            if row.sampling is not None:
                context = [token for block in row.table for token in self.memory[block]][: row.start + len(row.tokens)]
                tokens = [kept[0] for kept in context if kept is not None and kept[1] == CONTENTS[row.adapter]]
                assert len(tokens) == len(context), "nothing there, or of another adapter"
                drawn.append(DrawnToken(next_token(tokens)))
        return drawn


class Driver:
    """A scheduler with its pretended worker, checked after every step."""

    def __init__(self, blocks: int, limits: Limits) -> None:
        self.scheduler = Scheduler(blocks, limits)
        self.worker = PretendWorker(blocks, limits.block_size)
        self.limits = limits
        self.live: dict[int, Sequence] = {}

    def add(self, number: int, prompt: Tokens[int], count: int, adapter: int = 0) -> None:
        wish = Wish(sampling=RowSampling(0), max_tokens=count, adapter=adapter, adapter_key=CONTENTS[adapter])
        self.live[number] = Sequence(number, prompt, wish, self.limits.block_size)
        self.scheduler.add(self.live[number])

    def cancel(self, number: int) -> None:
        if number in self.live:
            self.scheduler.drop(self.live.pop(number))
            self.check()

    def step(self) -> list[Outcome]:
        step = self.scheduler.schedule()
        self.check()
        if step is None:
            return []
        assert 0 < sum(len(row.tokens) for row in step.rows) <= self.limits.batch_tokens
        assert len(self.scheduler.running) <= self.limits.running
        outcomes = self.scheduler.settle(self.worker.run(step, self.held()))
        for outcome in outcomes:
            if outcome.ending:
                del self.live[outcome.sequence.number]
        self.check()
        return outcomes

    def held(self) -> Counter[int]:
        return Counter(block for sequence in self.live.values() for block in sequence.blocks)

    def check(self) -> None:
        pool = self.scheduler.pool
        held = self.held()
        assert [pool.holders(block) for block in range(pool.total)] == [held[block] for block in range(pool.total)]
        assert pool.available == pool.total - len(held)
        assert all(len(set(sequence.blocks)) == len(sequence.blocks) for sequence in self.live.values())


class Request(NamedTuple):
    """`patience` is the number of steps until it is cancelled."""

    arrival: int
    prompt: list[int]
    answer: int
    patience: int
    adapter: int


@st.composite
def workloads(draw: st.DrawFn) -> tuple[int, Limits, list[Request]]:
    """Return a pool, limits, and requests."""
    size = draw(st.integers(1, 4))
    blocks = draw(st.integers(2, 12))
    limits = Limits(
        block_size=size,
        batch_tokens=draw(st.integers(1, 12)),
        running=draw(st.integers(1, 5)),
        prefix_cache=draw(st.booleans()) or draw(st.booleans()),
    )
    room = blocks * size
    requests = []
    for _ in range(draw(st.integers(1, 8))):
        length = draw(st.integers(1, room - 1))
        prompt = draw(st.one_of(st.just([1] * length), st.lists(st.integers(0, 1), min_size=length, max_size=length)))
        answer = draw(st.integers(1, min(room - length, 10)))
        patience = draw(st.sampled_from([999, 999, 1, 3, 8]))
        requests.append(Request(draw(st.integers(0, 10)), prompt, answer, patience, draw(st.sampled_from([0, *CONTENTS]))))
    return blocks, limits, requests


@settings(max_examples=300, deadline=None)
@given(workloads())
def test_everyone_gets_what_they_would_get_alone(workload: tuple[int, Limits, list[Request]]) -> None:
    blocks, limits, requests = workload
    driver = Driver(blocks, limits)
    answers: dict[int, list[int]] = {number: [] for number in range(len(requests))}
    for now in itertools.count():
        for number, (arrival, prompt, count, patience, adapter) in enumerate(requests):
            if arrival == now:
                driver.add(number, prompt, count, adapter)
            if arrival + patience == now:
                driver.cancel(number)
        for outcome in driver.step():
            answers[outcome.sequence.number].append(outcome.token.id)
        if now > 10 and not driver.live:
            break
        assert now < 10_000, "somebody waits for ever"
    assert driver.scheduler.pool.used == 0
    for number, (_, prompt, count, patience, _) in enumerate(requests):
        expected = alone(prompt, count)
        assert answers[number] == (expected if patience == 999 else expected[: len(answers[number])])


def test_a_prompt_that_is_cached_whole_is_copied_and_not_computed() -> None:
    driver = Driver(8, Limits(block_size=4, batch_tokens=64, running=4))
    driver.add(0, [1, 2, 3, 4, 5, 6, 7, 8], 1)
    driver.step()
    driver.add(1, [1, 2, 3, 4, 5, 6, 7, 8], 4)
    second = driver.live[1]
    step = driver.scheduler.schedule()
    assert step is not None
    assert len(step.copies) == 1
    assert [len(row.tokens) for row in step.rows] == [1]
    assert second.cached == 7


def test_a_prefix_is_shared_while_both_run_and_other_adapters_do_not_see_it() -> None:
    driver = Driver(16, Limits(block_size=4, batch_tokens=64, running=4))
    driver.add(0, [1] * 9, 5)
    driver.step()
    driver.add(1, [1] * 8 + [2], 5)
    driver.step()
    first, second = driver.live[0], driver.live[1]
    assert second.cached == 8
    assert first.blocks[:2] == second.blocks[:2]
    driver.add(2, [1] * 9, 5, adapter=1)
    other = driver.live[2]
    driver.step()
    assert other.cached == 0


@pytest.mark.parametrize(("number", "cached"), [(3, 8), (1, 8), (2, 0), (0, 0)])
def test_contents_of_an_adapter_are_known_under_its_next_number_too(number: int, cached: int) -> None:
    driver = Driver(16, Limits(block_size=4, batch_tokens=64, running=4))
    driver.add(0, [1] * 9, 1, adapter=1)
    driver.step()
    driver.add(1, [1] * 9, 2, adapter=number)
    step = driver.scheduler.schedule()
    assert step is not None
    assert [row.adapter for row in step.rows] == [number]
    assert driver.live[1].cached == cached


def test_a_long_prompt_does_not_hold_up_those_who_answer() -> None:
    driver = Driver(64, Limits(block_size=4, batch_tokens=8, running=4))
    driver.add(0, [1, 2], 20)
    driver.step()
    driver.add(1, [1] * 100, 3)
    for _ in range(10):
        assert [outcome.sequence.number for outcome in driver.step()] == [0]


def test_the_last_to_come_gives_way_and_comes_back() -> None:
    driver = Driver(4, Limits(block_size=4, batch_tokens=64, running=4, prefix_cache=False))
    driver.add(0, [1] * 7, 8)
    driver.add(1, [2] * 7, 8)
    order = []
    while driver.live:
        order += [(outcome.sequence.number, outcome.ending) for outcome in driver.step()]
    assert driver.scheduler.preemptions
    assert [number for number, ending in order if ending] == [0, 1]


def test_content_that_was_used_longest_ago_goes_first() -> None:
    driver = Driver(4, Limits(block_size=4, batch_tokens=64, running=1))
    for number, token in enumerate([5, 6, 5, 7]):
        driver.add(number, [token] * 4, 1)
        driver.step()
    for token, kept in ((5, True), (6, True), (7, True)):
        driver.add(9, [token] * 4 + [0], 1)
        sequence = driver.live[9]
        driver.step()
        assert (sequence.cached == 4) is kept
    driver.add(10, [8] * 12, 1)
    driver.step()
    driver.add(11, [7] * 4 + [0], 1)
    latest = driver.live[11]
    driver.step()
    assert latest.cached == 4


def test_stop_tokens_and_lengths_end_answers() -> None:
    limits = Limits(block_size=4, batch_tokens=64, running=4)
    scheduler = Scheduler(8, limits)
    scheduler.add(Sequence(0, [1], Wish(sampling=RowSampling(0), max_tokens=9, stop_ids=frozenset({7})), 4))
    scheduler.schedule()
    assert scheduler.settle([DrawnToken(6)])[0].ending is None
    scheduler.schedule()
    assert scheduler.settle([DrawnToken(7)])[0].ending == "stop"
    assert scheduler.schedule() is None
