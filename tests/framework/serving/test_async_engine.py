"""Tokens of batched, chunked, preempted, prefix-cached and streamed requests equal those of each request alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import torch

import loadmaster as lm
from engine.executors.process_watch import marked
from family_census import random_model
from loadmaster.serving import AsyncEngine, Delta, EngineSettings, SamplingParams
from tiny_models import greedy, save_model

FAMILIES: Final = ("llama", "qwen3", "gemma3_text", "qwen3_moe")
TOKENS: Final = 12
SHARED: Final = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]
PROMPTS: Final = [
    [3, 17, 20, 5, 49, 8, 8, 90, 41, 2, 7],
    [9],
    [5] * 30,
    [*SHARED, 30],
    [*SHARED, 31, 32],
    SHARED,
    SHARED,
    list(range(40, 63)),
]


async def answer(engine: AsyncEngine, prompt: Sequence[int], **values: Any) -> list[Delta]:
    params = SamplingParams(**{"max_tokens": TOKENS, "ignore_eos": True, **values})
    return [delta async for delta in engine.generate(prompt, params)]


def ids(deltas: Sequence[Delta]) -> tuple[int, ...]:
    return tuple(token for delta in deltas for token in delta.ids)


async def together(engine: AsyncEngine, prompts: Sequence[Sequence[int]], **values: Any) -> list[tuple[int, ...]]:
    return [ids(deltas) for deltas in await asyncio.gather(*(answer(engine, prompt, **values) for prompt in prompts))]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, ...]]]:
    model = random_model(request.param)
    model.generation_config.eos_token_id = None  # type: ignore[union-attr]
    folder = save_model(model, tmp_path_factory.mktemp(request.param))
    return folder, [greedy(model, prompt, TOKENS) for prompt in PROMPTS]


@pytest.mark.parametrize("ranks", [1, 2])
def test_batched_chunked_and_cached(family: tuple[Path, list[tuple[int, ...]]], ranks: int) -> None:
    folder, expected = family

    async def scene() -> None:
        settings = EngineSettings(block_size=4, max_batch_tokens=7)
        async with await AsyncEngine.open(folder, settings=settings, tensor_parallel=ranks, executor="inline") as engine:
            assert [ids(await answer(engine, prompt)) for prompt in PROMPTS[:3]] == expected[:3]
            assert await together(engine, PROMPTS) == expected
            again = await asyncio.gather(*(answer(engine, prompt) for prompt in PROMPTS))
            assert [ids(deltas) for deltas in again] == expected
            assert again[5][-1].cached_tokens == len(SHARED) - 1
            assert again[3][0].cached_tokens == len(SHARED)
            assert all(len(delta.ids) == 1 for delta in again[0])
            stats = engine.stats()
            assert stats.kv_blocks_used == 0
            assert stats.requests_done == 2 * len(PROMPTS) + 3
            assert stats.alive

    asyncio.run(scene())


@pytest.mark.parametrize("ranks", [1, 2])
def test_preempted(family: tuple[Path, list[tuple[int, ...]]], ranks: int) -> None:
    folder, expected = family

    async def scene() -> None:
        block = 2 * 2 * 2 * 8 * 4 * 4  # layers, keys and values, heads, head size, bytes, tokens
        settings = EngineSettings(block_size=4, kv_bytes=12 * block, max_batch_tokens=16)
        async with await AsyncEngine.open(folder, settings=settings, tensor_parallel=ranks, executor="inline") as engine:
            assert engine.stats().kv_blocks_total == 12
            assert engine.max_model_len == 48
            assert await together(engine, PROMPTS) == expected
            assert engine.stats().preemptions > 0

    asyncio.run(scene())


def test_worker_processes_answer_and_a_dead_one_fails_every_request(tmp_path: Path, mark: str) -> None:
    model = random_model("qwen3_moe", max_position_embeddings=512)
    model.generation_config.eos_token_id = None  # type: ignore[union-attr]
    folder = save_model(model, tmp_path)
    expected = [greedy(model, prompt, TOKENS) for prompt in PROMPTS]

    async def scene() -> None:
        settings = EngineSettings(block_size=4, max_batch_tokens=16)
        async with await AsyncEngine.open(folder, settings=settings, tensor_parallel=2) as engine:
            assert await together(engine, PROMPTS) == expected
            running = [asyncio.create_task(answer(engine, PROMPTS[0], max_tokens=400)) for _ in range(3)]
            while engine.stats().running < 3:
                await asyncio.sleep(0.01)
            (worker,) = [process for process, name in marked(mark).items() if name == "loadmaster-r1"]
            os.kill(worker, signal.SIGKILL)
            for deltas in await asyncio.gather(*running):
                assert deltas[-1].finish_reason == "error"
                assert "rank" in deltas[-1].error
            stats = engine.stats()
            assert (stats.alive, stats.stage, stats.requests_failed) == (False, "failed", 3)
            with pytest.raises(lm.WorkerError, match="LM-ENGINE-FAILED"):
                engine.generate(PROMPTS[0], SamplingParams())

    asyncio.run(scene())


@pytest.mark.parametrize("family_name", ["gemma2", "gpt_oss", "deepseek_v3"])
def test_caps_sinks_and_latent_attention(family_name: str, tmp_path: Path) -> None:
    model: torch.nn.Module = random_model(family_name)
    model.generation_config.eos_token_id = None  # type: ignore[union-attr]
    save_model(model, tmp_path)

    async def scene() -> None:
        settings = EngineSettings(block_size=4, max_batch_tokens=7)
        async with await AsyncEngine.open(tmp_path, settings=settings, tensor_parallel=2, executor="inline") as engine:
            assert await together(engine, PROMPTS) == [greedy(model, prompt, TOKENS) for prompt in PROMPTS]

    asyncio.run(scene())


def test_a_seed_gives_the_same_tokens_in_any_company(tmp_path: Path) -> None:
    folder = save_model(random_model("llama"), tmp_path)

    async def scene() -> None:
        settings = EngineSettings(block_size=4, max_batch_tokens=7)
        async with await AsyncEngine.open(folder, settings=settings) as engine:
            wild: dict[str, Any] = {"temperature": 1.5, "top_p": 0.95, "seed": 3, "presence_penalty": 0.5}
            alone = [ids(await answer(engine, prompt, **wild)) for prompt in PROMPTS]
            assert await together(engine, PROMPTS, **wild) == alone
            assert len(set(await together(engine, [PROMPTS[0]] * 4, temperature=5.0))) == 4

    asyncio.run(scene())
