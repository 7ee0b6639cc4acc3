"""Sleeping gives memory back, and waking gives the same bits as before; requests that run go on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import loadmaster as lm
from loadmaster import memory
from loadmaster.serving import AsyncEngine, EngineSettings, SamplingParams
from tiny_models import IDS, make_model, save_model

SETTINGS = EngineSettings(max_running=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama", eos_token_id=None), tmp_path_factory.mktemp("llama"))


async def answer(engine: AsyncEngine, count: int = 24) -> tuple[list[int], list[float]]:
    deltas = [delta async for delta in engine.generate(IDS, SamplingParams(max_tokens=count, logprobs=0))]
    return [token for delta in deltas for token in delta.ids], [one.logprob for delta in deltas for one in delta.logprobs]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_waking_gives_the_same_bits(folder: Path, level: Any, ranks: int) -> None:
    async def scene() -> None:
        options: dict[str, Any] = {"tensor_parallel": ranks, "executor": "inline", "read_mode": "direct"}
        async with await AsyncEngine.open(folder, settings=SETTINGS, **options) as engine:
            before = await answer(engine)
            logits = engine.model.logits(IDS)
            await engine.sleep(level)
            assert engine.stats().stage == "asleep"
            waiting = asyncio.create_task(answer(engine))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await engine.wake()
            assert await waiting == before
            assert (engine.model.logits(IDS) == logits).all()
            assert engine.stats().stage == "serve"

    asyncio.run(scene())


def test_requests_that_run_go_on_after_waking(folder: Path) -> None:
    async def scene() -> None:
        async with await AsyncEngine.open(folder, settings=SETTINGS) as engine:
            expected = await answer(engine, 100)
            running = asyncio.create_task(answer(engine, 100))
            while not engine.stats().running:
                await asyncio.sleep(0)
            await engine.sleep(1)
            await engine.sleep(2)
            await engine.wake()
            await engine.wake()
            assert (await running)[0] == expected[0]

    asyncio.run(scene())


def test_memory_that_is_gone_leaves_the_engine_asleep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with await AsyncEngine.open(folder, settings=SETTINGS) as engine:
            expected = await answer(engine)
            await engine.sleep(2)
            with monkeypatch.context() as patch:
                patch.setattr(memory, "available_memory", lambda: 1000)
                with pytest.raises(lm.ResourceError, match="no longer there"):
                    await engine.wake()
            assert engine.stats().stage == "asleep"
            await engine.wake()
            assert await answer(engine) == expected
            with pytest.raises(lm.UsageError, match="LM-USAGE-SLEEP"):
                await engine.sleep(3)  # type: ignore[arg-type]

    asyncio.run(scene())


@pytest.mark.parametrize("level", [1, 2])
def test_what_cannot_be_done_asleep_is_refused_and_changes_nothing(folder: Path, level: Any) -> None:
    async def scene() -> None:
        async with await AsyncEngine.open(folder, settings=SETTINGS, tensor_parallel=2, executor="inline") as engine:
            expected = await answer(engine)
            await engine.sleep(level)
            for call in (engine.model.logits, lambda ids: engine.model.generate([ids])):
                with pytest.raises(lm.UsageError, match="LM-ENGINE-ASLEEP"):
                    call(IDS)
            await engine.wake()
            assert await answer(engine) == expected

    asyncio.run(scene())


def test_draining_asleep_returns_at_once_and_closing_ends_who_waits(folder: Path) -> None:
    async def scene() -> None:
        engine = await AsyncEngine.open(folder, settings=SETTINGS)
        await engine.sleep(1)
        waiting = asyncio.create_task(answer(engine))
        await asyncio.sleep(0)
        begin = time.monotonic()
        assert not await engine.drain(60.0)
        await engine.close()
        assert time.monotonic() - begin < 30.0
        assert await waiting == ([], [])

    asyncio.run(scene())


def resident() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_sleeping_gives_the_memory_back(tmp_path: Path) -> None:
    model = make_model("llama", hidden_size=512, intermediate_size=4096, num_hidden_layers=4)
    nbytes = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert nbytes > 80_000_000
    save_model(model, tmp_path)
    del model

    async def scene() -> None:
        async with await AsyncEngine.open(tmp_path, settings=SETTINGS, read_mode="direct") as engine:
            await answer(engine)
            loaded = resident()
            await engine.sleep(2)
            assert loaded - resident() > 0.8 * nbytes
            await engine.wake()
            assert abs(resident() - loaded) < 0.5 * nbytes

    asyncio.run(scene())
