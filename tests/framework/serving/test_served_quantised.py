"""Quantised weights are served as others are, and come back the same from sleep."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import loadmaster as lm
from loadmaster.serving import AsyncEngine, EngineSettings, SamplingParams

MODEL = Path(__file__).parents[2] / "data" / "gptq-4b-g64-asym-act"
PROMPTS = [[5, 9, 61, 3, 77, 12, 13], [8], [4, 4, 2, 40, 41, 42, 43, 44, 45, 46]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_tokens_equal_those_of_one_batch(ranks: int) -> None:
    with lm.Engine(MODEL, dtype="float32", kernel="dequant") as engine:
        expected = [
            one.token_ids for one in (engine.generate([prompt], max_tokens=8, temperature=0.0)[0] for prompt in PROMPTS)
        ]

    async def scene() -> None:
        settings = EngineSettings(block_size=4, max_batch_tokens=6, max_running=4)
        async with await AsyncEngine.open(
            MODEL, settings=settings, tensor_parallel=ranks, executor="inline", dtype="float32", kernel="dequant"
        ) as engine:

            async def answer(prompt: list[int]) -> tuple[int, ...]:
                deltas = [delta async for delta in engine.generate(prompt, SamplingParams(max_tokens=8))]
                return tuple(token for delta in deltas for token in delta.ids)

            assert await asyncio.gather(*map(answer, PROMPTS)) == expected
            await engine.sleep(2)
            await engine.wake()
            assert await asyncio.gather(*map(answer, PROMPTS)) == expected

    asyncio.run(scene())
