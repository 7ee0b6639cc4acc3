"""One reading: a batch of equal requests through a serving engine, timed from the outside."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from typing import Final, NamedTuple

from loadmaster.serving.engine import AsyncEngine
from loadmaster.serving.stream import Stream
from loadmaster.serving.types import SamplingParams
from loadmaster.tuning.climb import Reading
from loadmaster_hookspecs.errors import WorkerError

SEED: Final = 0


class Load(NamedTuple):
    """What is asked of every batch: prompts of `prompt_tokens`, and `steps` steps in which all its requests draw."""

    prompt_tokens: int = 128
    steps: int = 32


def tokens_needed(load: Load, batch: int, batch_tokens: int) -> int:
    """Return the tokens of one request of a batch, prompt and answer.

    Steps have `batch_tokens`, so prompts are computed one after the other, and the first requests answer meanwhile.
    """
    meanwhile = -(-batch * load.prompt_tokens // max(1, batch_tokens - batch))
    return load.prompt_tokens + meanwhile + load.steps + 1


async def read(engine: AsyncEngine, load: Load, batch: int) -> Reading:
    """Run a batch and return its reading. The others are cancelled as soon as the first request has all its tokens.

    Raises WorkerError when the engine fails.
    """
    begun = time.perf_counter()
    tokens = tokens_needed(load, batch, engine.settings.max_batch_tokens)
    params = SamplingParams(max_tokens=tokens - load.prompt_tokens, ignore_eos=True)
    draw = random.Random(SEED)
    vocabulary = range(engine.model.plan.data.outline.vocab_size)
    arrivals: list[list[float]] = [[] for _ in range(batch)]
    streams = [engine.generate(draw.choices(vocabulary, k=load.prompt_tokens), params) for _ in arrivals]
    readers = [asyncio.ensure_future(_note(*pair)) for pair in zip(streams, arrivals, strict=True)]
    try:
        done, _ = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
        for reader in done:
            reader.result()
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    # While the last to begin answers, all do.
    last = max(arrivals, key=lambda times: times[0])
    step = statistics.median(later - earlier for earlier, later in itertools.pairwise(last))
    return Reading(
        batch=batch,
        tokens_per_second=batch / step,
        step_seconds=step,
        first_token_seconds=statistics.median(times[0] for times in arrivals) - begun,
        seconds=time.perf_counter() - begun,
    )


async def _note(stream: Stream, arrivals: list[float]) -> None:
    """Note when the tokens of a request arrive, in seconds of the performance counter."""
    async for delta in stream:
        if delta.finish_reason == "error":
            raise WorkerError("LM-ENGINE-FAILED", "the engine failed while it was tuned", why=delta.error)
        arrivals.append(time.perf_counter())
