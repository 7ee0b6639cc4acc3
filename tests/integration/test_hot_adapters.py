"""Adapters over worker processes: planned in a process of their own that stands back, and ends with the engine."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

import loadmaster as lm
from hot_adapters import World, make_world, tokens, truncated
from loadmaster.serving import AsyncEngine, EngineSettings
from loadmaster_engine.run.adapter_planning import NICENESS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def niced() -> list[int]:
    """Return this process's descendants that stand back."""
    return [child.pid for child in psutil.Process(os.getpid()).children(recursive=True) if child.nice() > 0]


@pytest.mark.timeout(300)  # the planner waits for whatever else runs on the machine
def test_two_ranks_and_a_planner(world: World, tmp_path: Path) -> None:
    broken = truncated(world.adapters["dora"], tmp_path / "broken")
    given: dict[str, Any] = {"attention": world.adapters["attention"]}

    async def scene() -> None:
        settings = EngineSettings(block_size=4, max_batch_tokens=16)
        async with await AsyncEngine.open(world.model, settings=settings, tensor_parallel=2, adapters=given) as engine:
            assert not niced()
            everything = await engine.adapters.load("everything", str(world.adapters["everything"]))
            planners = niced()
            assert len(planners) == 1
            session = Path(f"/proc/{planners[0]}/autogroup")
            assert not session.exists() or session.read_text().split()[-1] == str(NICENESS)
            with pytest.raises(lm.IntegrityError):
                await engine.adapters.load("broken", str(broken))
            await engine.adapters.load("dora", str(world.adapters["dora"]))
            assert niced() == planners
            mixed = await asyncio.gather(*(tokens(engine, name) for name in world.expected))
            assert dict(zip(world.expected, mixed, strict=True)) == world.expected
            assert await engine.adapters.unload("everything") == everything.nbytes
            await engine.sleep(2)
            assert not niced()
            await engine.wake()
            assert await tokens(engine, "dora") == world.expected["dora"]
            assert await tokens(engine) == world.expected[""]
        assert not niced()

    asyncio.run(scene())
