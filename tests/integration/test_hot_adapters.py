"""Adapters over worker processes: planned in a process beside the ranks that stands back and ends with the engine."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

import loadmaster as lm
from hot_adapters import World, make_world, tokens, truncated
from loadmaster.adapters.planning import AdapterPlanning
from loadmaster.serving import AsyncEngine, EngineSettings, SamplingParams
from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.run.adapter_planning import NICENESS
from loadmaster_hookspecs.plan import AdapterPlan
from tiny_models import IDS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def below() -> list[psutil.Process]:
    """Return this process's descendants."""
    found: list[psutil.Process] = psutil.Process(os.getpid()).children(recursive=True)
    return found


def niced() -> list[int]:
    """Return those that stand back."""
    return [child.pid for child in below() if child.nice() > 0]


async def long_request(engine: AsyncEngine) -> tuple[int, str]:
    """Return how many tokens a request without adapter got, and its error."""
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    parts = [delta async for delta in engine.generate(IDS, params)]
    return sum(len(delta.ids) for delta in parts), parts[-1].error


async def error_of_requests(engine: AsyncEngine) -> str:
    """Send one request after another and return what the first one that fails is told."""
    try:
        while not (error := (await long_request(engine))[1]):
            pass
    except lm.WorkerError as refused:  # the engine failed between two of them
        return str(refused)
    return error


@pytest.mark.timeout(300)  # the planner waits for whatever else runs on the machine
def test_two_ranks_and_planners_that_come_and_go(world: World, tmp_path: Path) -> None:
    broken = truncated(world.adapters["dora"], tmp_path / "broken")
    given: dict[str, Any] = {"attention": world.adapters["attention"]}

    async def scene() -> None:
        settings = EngineSettings(block_size=4, max_batch_tokens=16)
        async with await AsyncEngine.open(world.model, settings=settings, tensor_parallel=2, adapters=given) as engine:
            assert not niced()
            everything = await engine.adapters.load("everything", str(world.adapters["everything"]))
            planners = niced()
            assert len(planners) == 1
            assert [process.name() for process in below()].count("loadmaster-fork") == 1
            assert psutil.Process(planners[0]).nice() == NICENESS
            with pytest.raises(lm.IntegrityError):
                await engine.adapters.load("broken", str(broken))
            assert niced() == planners
            request = asyncio.create_task(long_request(engine))
            os.kill(planners[0], signal.SIGKILL)
            await engine.adapters.load("dora", str(world.adapters["dora"]))
            assert len(niced()) == 1
            assert niced() != planners
            assert await request == (60, "")
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


@pytest.mark.timeout(300)
def test_a_rank_that_dies_during_a_load_is_what_requests_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = AdapterPlanning.plan

    def killing_a_rank(planning: AdapterPlanning, request: AdapterRequest) -> AdapterPlan:
        made = plan(planning, request)
        os.kill(next(child.pid for child in below() if child.name() == "loadmaster-r1"), signal.SIGKILL)
        return made

    async def scene() -> None:
        async with await AsyncEngine.open(world.model, settings=EngineSettings(block_size=4), tensor_parallel=2) as engine:
            monkeypatch.setattr(AdapterPlanning, "plan", killing_a_rank)
            load = asyncio.create_task(engine.adapters.load("attention", str(world.adapters["attention"])))
            assert "the worker of rank 1 was killed by SIGKILL" in await error_of_requests(engine)
            with pytest.raises(lm.WorkerError, match="the worker of rank 1 was killed by SIGKILL"):
                await load
        assert not below()

    asyncio.run(scene())
