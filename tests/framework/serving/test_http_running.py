"""Several choices at once: every iterator that was opened is closed, whatever ends the job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from fake_serving import FakeServingEngine
from loadmaster.serving.http.errors import ApiError
from loadmaster.serving.http.jobs import Choice, Job
from loadmaster.serving.http.prompts import Prompt
from loadmaster.serving.http.running import running
from loadmaster.serving.types import Delta, SamplingParams

PROMPT = Prompt((1, 2))
JOB = Job("id", 0, "tiny", (PROMPT,), (Choice(PROMPT, SamplingParams()),) * 3, False)


class Deltas:
    """An iterator that is no generator: what it holds is freed by `aclose` alone."""

    def __init__(self, given: Sequence[Delta]) -> None:
        self._given = list(given)
        self.closed = 0

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        if not self._given:
            await asyncio.sleep(60)
        return self._given.pop(0)

    async def aclose(self) -> None:
        self.closed += 1


class Engine(FakeServingEngine):
    """Gives the iterators it was made with, one per request."""

    def __init__(self, deltas: Sequence[Deltas]) -> None:
        super().__init__()
        self._deltas_left = list(deltas)

    def generate(self, *_: Any, **__: Any) -> Any:
        return self._deltas_left.pop(0)


async def _take(engine: Engine, count: int) -> list[tuple[int, str]]:
    """Return the first `count` deltas of the job, then leave."""
    taken: list[tuple[int, str]] = []
    async with running(engine, JOB) as deltas:
        async for index, delta in deltas:
            taken.append((index, delta.text))
            if len(taken) == count:
                break
    return taken


def test_leaving_closes_all_iterators() -> None:
    iterators = [Deltas([Delta(text="a")]), Deltas([Delta(text="b"), Delta(text="c")]), Deltas([])]
    assert sorted(asyncio.run(_take(Engine(iterators), 3))) == [(0, "a"), (1, "b"), (1, "c")]
    assert [iterator.closed for iterator in iterators] == [1, 1, 1]


def test_a_job_ends_with_its_last_choice() -> None:
    iterators = [Deltas([Delta(text=text), Delta(finish_reason="stop")]) for text in "abc"]
    assert sorted(asyncio.run(_take(Engine(iterators), 100))) == [(0, ""), (0, "a"), (1, ""), (1, "b"), (2, ""), (2, "c")]
    assert [iterator.closed for iterator in iterators] == [1, 1, 1]


def test_a_choice_that_fails_ends_the_others() -> None:
    iterators = [Deltas([]), Deltas([Delta(finish_reason="error", error="rank 0 died")]), Deltas([Delta(text="x")])]
    with pytest.raises(ApiError, match="rank 0 died") as caught:
        asyncio.run(_take(Engine(iterators), 100))
    assert caught.value.status == 500
    assert [iterator.closed for iterator in iterators] == [1, 1, 1]


def test_an_answer_without_an_end_is_an_error() -> None:
    class Cut(FakeServingEngine):
        async def generate(self, *_: Any, **__: Any) -> AsyncIterator[Delta]:
            yield Delta(text="a")

    async def collect() -> None:
        async with running(Cut(), JOB) as deltas:
            async for _ in deltas:
                pass

    with pytest.raises(ApiError, match="without a reason"):
        asyncio.run(collect())
