"""Requests whose answers are known, sent without a pause, and the time between the tokens that come back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from itertools import cycle, islice, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from loadmaster.serving import AsyncEngine

LOWEST, HIGHEST = 100, 1000
"""Token ids of prompts: none of them is special."""

PATTERN: Final = 4
REPEATS: Final = 3
"""Prompts are a few tokens again and again, which the model goes on with confidently."""

CANDIDATES: Final = 12
"""Prompts of which those are chosen whose answers tell most."""

SURE: Final = 0.5
"""How far, as a logarithm, the likeliest token must be ahead: bfloat16 logits are multiples of an eighth."""


class Known(NamedTuple):
    """A greedy request and the beginning of its answer, up to the first token that rounding could decide."""

    adapter: str
    prompt: list[int]
    answer: list[int]


class Gap(NamedTuple):
    """Between two tokens of one request: when it began, and how many seconds it lasted."""

    begin: float
    seconds: float


async def known_answers(engine: AsyncEngine, adapters: Sequence[str], count: int, tokens: int) -> list[list[Known]]:
    """Return requests for the base and for each adapter: with many certain tokens, and other ones than the base's."""
    numbers = random.Random(0)
    prompts = [[numbers.randrange(LOWEST, HIGHEST) for _ in range(PATTERN)] * REPEATS for _ in range(CANDIDATES)]
    asked = [await asyncio.gather(*(_certain(engine, name, prompt, tokens) for prompt in prompts)) for name in ("", *adapters)]

    def telling(pair: tuple[Known, Known]) -> tuple[bool, int]:
        own, base = pair[0].answer, pair[1].answer
        return any(a != b for a, b in zip(own, base, strict=False)), len(own)

    ordered = [sorted(zip(own, asked[0], strict=True), key=telling) for own in asked]
    return [[known for known, _ in each[-count:]] for each in ordered]


async def _certain(engine: AsyncEngine, adapter: str, prompt: list[int], tokens: int) -> Known:
    from loadmaster.serving import SamplingParams

    params = SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=2)
    drawn = [each async for delta in engine.generate(prompt, params, adapter=adapter) for each in delta.logprobs]
    sure = takewhile(lambda each: each.top[0][2] - each.top[1][2] > SURE, drawn)
    return Known(adapter, prompt, [each.id for each in sure])


class Traffic:
    """As many requests at once as `everyone`, one after the other each. `gaps` and the counts are of all so far."""

    def __init__(self, engine: AsyncEngine, everyone: Sequence[Known], tokens: int) -> None:
        self.gaps: list[Gap] = []
        self.answered = 0
        self.compared = 0
        self.changed = 0
        self.failed = 0
        self._engine = engine
        self._everyone = everyone
        self._tokens = tokens
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to ask."""
        self._tasks = [asyncio.create_task(self._client(index)) for index in range(len(self._everyone))]

    async def stop(self) -> None:
        """Ask no more and forget what is under way. Raises what went wrong in asking."""
        for task in self._tasks:
            task.cancel()
        done = await asyncio.gather(*self._tasks, return_exceptions=True)
        for error in done:
            if isinstance(error, Exception):
                raise error

    async def tokens(self, count: int) -> None:
        """Wait until every client has got about so many more tokens. Raises TimeoutError when that takes a minute."""
        wanted = len(self.gaps) + count * len(self._everyone)
        async with asyncio.timeout(60.0):
            while len(self.gaps) < wanted:
                await asyncio.sleep(0.02)

    async def ask(self, known: Known, tokens: int = 0) -> None:
        """Send one request and compare its answer, of `tokens` tokens if that is given."""
        from loadmaster.serving import SamplingParams

        params = SamplingParams(max_tokens=tokens or self._tokens, ignore_eos=True)
        got: list[int] = []
        before, reason = 0.0, None
        async for delta in self._engine.generate(known.prompt, params, adapter=known.adapter):
            now = time.perf_counter()
            if before:
                self.gaps.append(Gap(before, now - before))
            before, reason = now, delta.finish_reason
            got += delta.ids
        self.answered += 1
        self.failed += reason != "length"
        compared = min(len(known.answer), len(got))
        self.compared += compared
        self.changed += got[:compared] != known.answer[:compared]

    async def _client(self, index: int) -> None:
        # A shorter answer first, so that requests begin in different steps from then on.
        await self.ask(self._everyone[index], 1 + index * self._tokens // len(self._everyone))
        for known in islice(cycle(self._everyone), index, None):
            await self.ask(known)
