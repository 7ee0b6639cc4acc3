"""Adapters come and go while requests run: every answer stays what peft computes, whatever happens to the others."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

import loadmaster as lm
from hot_adapters import Stream, World, deltas, make_world, other_content, reference, tokens, truncated
from loadmaster.serving import AsyncEngine, EngineSettings, SamplingParams
from peft_adapters import adapt, adapter_tensors, write_adapter_tensors
from tiny_models import IDS, make_model, save_model

SETTINGS = EngineSettings(block_size=4, max_batch_tokens=16, max_running=8)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


async def opened(world: World, settings: EngineSettings = SETTINGS, **options: Any) -> AsyncEngine:
    return await AsyncEngine.open(world.model, settings=settings, **{"executor": "inline", **options})


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_mixed_batch_gives_each_what_it_gets_alone(world: World, ranks: int) -> None:
    async def scene() -> None:
        async with await opened(world, tensor_parallel=ranks) as engine:
            for name, path in world.adapters.items():
                info = await engine.adapters.load(name, str(path))
                assert info.nbytes > 0
                assert info.kind == "lora"
            mixed = await asyncio.gather(*(tokens(engine, name) for name in world.expected))
            assert dict(zip(world.expected, mixed, strict=True)) == world.expected
            for name, expected in world.expected.items():
                assert await tokens(engine, name) == expected
            counts = {each.name: each for each in engine.stats().adapters}
            assert {name: each.requests for name, each in counts.items()} == dict.fromkeys(world.expected, 2)
            assert all(each.prompt_tokens == 2 * len(IDS) for each in counts.values())
            assert all(each.cached_tokens == len(IDS) // 4 * 4 for each in counts.values())

    asyncio.run(scene())


def test_loading_and_unloading_beside_requests_changes_no_answer(world: World, tmp_path: Path) -> None:
    broken = truncated(world.adapters["everything"], tmp_path / "broken")
    wrong = adapt(save_model(make_model("llama", hidden_size=32), tmp_path / "wrong"), tmp_path / "of-another").adapter

    async def scene() -> None:
        async with await opened(world) as engine:
            await engine.adapters.load("attention", str(world.adapters["attention"]))
            async with Stream(engine, ["", "attention", ""]) as stream:
                for _ in range(20):
                    info = await engine.adapters.load("it", str(world.adapters["everything"]))
                    assert await tokens(engine, "it") == world.expected["everything"]
                    with pytest.raises(lm.IntegrityError):
                        await engine.adapters.load("it", str(broken))
                    with pytest.raises(lm.LoadmasterError, match="adapter"):
                        await engine.adapters.load("other", str(wrong))
                    assert await engine.adapters.unload("it") == info.nbytes
            assert len(stream.answers) > 20
            assert all(answer == world.expected[name] for name, answer in stream.answers)
            assert [info.name for info in engine.adapters.list()] == ["attention"]
            assert engine.stats().requests_failed == 0

    asyncio.run(scene())


def test_another_content_under_the_same_name_never_meets_old_caches(world: World, tmp_path: Path) -> None:
    second = other_content(world, tmp_path / "second")
    expected = reference(world.model, second)
    assert expected != world.expected["attention"]

    async def scene() -> None:
        async with await opened(world) as engine:
            first = await engine.adapters.load("it", str(world.adapters["attention"]), pinned=True)
            assert await tokens(engine, "it") == world.expected["attention"]
            running = asyncio.create_task(tokens(engine, "it"))
            await asyncio.sleep(0)
            info = await engine.adapters.load("it", str(second))
            assert info.digest != first.digest
            assert info.pinned
            assert await running == world.expected["attention"]
            answer = await deltas(engine, "it")
            assert tuple(token for delta in answer for token in delta.ids) == expected
            assert answer[-1].cached_tokens == 0
            assert (await deltas(engine, "it"))[-1].cached_tokens > 0
            again = await engine.adapters.load("it", str(shutil.copytree(second, tmp_path / "copy")))
            assert again == info
            assert await engine.adapters.unload("it") == info.nbytes

    asyncio.run(scene())


def test_parallel_loads_and_unloads_of_one_name(world: World) -> None:
    path = str(world.adapters["attention"])

    async def scene() -> None:
        async with await opened(world) as engine:
            loads = [engine.adapters.load("x", path) for _ in range(20)]
            unloads = [engine.adapters.unload("x") for _ in range(20)]
            infos, freed = await asyncio.wait_for(asyncio.gather(asyncio.gather(*loads), asyncio.gather(*unloads)), 60)
            info = infos[0]
            assert infos == [info] * 20
            assert freed == [info.nbytes] * 20
            assert engine.adapters.list() == ()
            calls = [engine.adapters.load("x", path) if turn % 2 == 0 else engine.adapters.unload("x") for turn in range(40)]
            await asyncio.wait_for(asyncio.gather(*calls), 60)
            assert engine.adapters.list() == ()
            await engine.adapters.load("x", path)
            assert await tokens(engine, "x") == world.expected["attention"]
            assert await engine.adapters.unload("x") == info.nbytes
            with pytest.raises(lm.UsageError, match="no adapter is called 'x'"):
                await engine.adapters.unload("x")
            with pytest.raises(lm.UsageError, match="no adapter is called 'x'"):
                engine.generate(IDS, SamplingParams(), adapter="x")

    asyncio.run(scene())


def test_a_rank_beyond_the_limit_is_refused_and_others_go_on(world: World, tmp_path: Path) -> None:
    large = adapt(world.model, tmp_path / "large", r=64).adapter
    settings = EngineSettings(block_size=4, max_adapter_rank=16)

    async def scene() -> None:
        async with await opened(world, settings) as engine:
            running = asyncio.create_task(tokens(engine))
            with pytest.raises(lm.PlanError, match="64 > 16") as caught:
                await engine.adapters.load("large", str(large))
            assert caught.value.code == "LM-ADAPTER-RANK"
            assert await running == world.expected[""]
            await engine.adapters.load("good", str(world.adapters["everything"]))
            assert await tokens(engine, "good") == world.expected["everything"]

    asyncio.run(scene())


def test_the_one_used_longest_ago_makes_room_and_is_named(world: World, tmp_path: Path) -> None:
    paths = {name: str(other_content(world, tmp_path / name, seed)) for seed, name in enumerate("abc", 11)}

    async def scene() -> None:
        async with await opened(world) as engine:
            size = (await engine.adapters.load("a", paths["a"])).nbytes
        async with await opened(world, EngineSettings(block_size=4, adapter_bytes=2 * size)) as engine:
            for name in "ab":
                await engine.adapters.load(name, paths[name])
            await tokens(engine, "a")
            await engine.adapters.load("c", paths["c"])
            assert [info.name for info in engine.adapters.list()] == ["a", "c"]
            assert f"adapter b ({size} bytes) made room for c ({size} bytes)" in engine.model.notices
            engine.adapters.pin("a")
            engine.adapters.pin("c")
            with pytest.raises(lm.ResourceError, match="pinned") as caught:
                await engine.adapters.load("b", paths["b"])
            assert caught.value.code == "LM-ADAPTER-BUDGET"
            engine.adapters.pin("a", False)
            await engine.adapters.load("b", paths["b"])
            assert [info.name for info in engine.adapters.list()] == ["c", "b"]

    asyncio.run(scene())


@pytest.mark.parametrize("name", ["c", "b"])
def test_those_that_made_room_for_one_that_fails_are_there_again(world: World, tmp_path: Path, name: str) -> None:
    paths = {each: other_content(world, tmp_path / each, seed) for seed, each in enumerate("ab", 11)}
    expected = {each: reference(world.model, path) for each, path in paths.items()}
    bad = shutil.copytree(paths["a"], tmp_path / "bad")
    write_adapter_tensors(bad, {key: tensor * float("nan") for key, tensor in adapter_tensors(bad).items()})

    async def scene() -> None:
        async with await opened(world) as engine:
            size = (await engine.adapters.load("a", str(paths["a"]))).nbytes
        async with await opened(world, EngineSettings(block_size=4, adapter_bytes=2 * size)) as engine:
            before = [await engine.adapters.load(each, str(path)) for each, path in paths.items()]
            assert await tokens(engine, "b") == expected["b"]
            with pytest.raises(lm.IntegrityError, match="LM-ADAPTER-VALUES"):
                await engine.adapters.load(name, str(bad))
            assert sorted(engine.adapters.list(), key=lambda info: info.name) == before
            assert f"adapter a ({size} bytes) is there again" in engine.model.notices
            for each in "ab":
                assert await tokens(engine, each) == expected[each]
            assert await engine.adapters.unload("a") == size

    asyncio.run(scene())


def test_an_unload_waits_for_those_that_use_the_adapter(world: World) -> None:
    async def scene() -> None:
        async with await opened(world, adapters={"attention": world.adapters["attention"]}) as engine:
            (info,) = engine.adapters.list()
            assert info.using == 0
            await engine.sleep(1)
            waiting = asyncio.create_task(tokens(engine, "attention"))
            await asyncio.sleep(0)
            assert engine.adapters.list()[0].using == 1
            with pytest.raises(lm.ResourceError, match="LM-ADAPTER-BUSY"):
                await engine.adapters.unload("attention", timeout=0.05)
            with pytest.raises(lm.UsageError, match="loaded: none"):
                await tokens(engine, "attention")
            joined = asyncio.create_task(engine.adapters.unload("attention"))
            await engine.wake()
            assert await waiting == world.expected["attention"]
            assert await joined == info.nbytes

    asyncio.run(scene())


def test_broken_off_requests_hold_nothing(world: World) -> None:
    async def scene() -> None:
        async with await opened(world) as engine:
            info = await engine.adapters.load("it", str(world.adapters["dora"]))
            stream = engine.generate(IDS, SamplingParams(max_tokens=60), adapter="it")
            await anext(stream)
            await stream.aclose()
            assert await engine.adapters.unload("it", timeout=30) == info.nbytes

    asyncio.run(scene())


@pytest.mark.parametrize("level", [1, 2])
def test_adapters_are_there_again_after_waking(world: World, level: Any, tmp_path: Path) -> None:
    goes = shutil.copytree(world.adapters["dora"], tmp_path / "goes")

    async def scene() -> None:
        async with await opened(world, adapters={"attention": world.adapters["attention"], "start": goes}) as engine:
            await engine.adapters.unload("start")
            await engine.adapters.load("goes", str(goes))
            await engine.adapters.load("it", str(world.adapters["everything"]))
            await engine.sleep(level)
            if level == 2:
                with pytest.raises(lm.ResourceError, match="LM-ADAPTER-ASLEEP"):
                    await engine.adapters.load("new", str(world.adapters["dora"]))
                other_content(world, goes)
            waiting = [asyncio.create_task(deltas(engine, name)) for name in ("", "attention", "it", "goes")]
            await asyncio.sleep(0.05)
            await engine.wake()
            answers = [tuple(token for delta in await each for token in delta.ids) for each in waiting]
            expected = [world.expected[name] for name in ("", "attention", "everything", "dora")]
            assert answers[:3] == expected[:3]
            if level == 1:
                assert answers[3] == expected[3]
                return
            last = (await waiting[3])[-1]
            assert last.finish_reason == "error"
            assert "goes" in last.error
            assert [info.name for info in engine.adapters.list()] == ["attention", "it"]
            assert any("adapter goes cannot be loaded again" in notice for notice in engine.model.notices)
            assert await engine.adapters.unload("attention") > 0
            assert await tokens(engine, "it") == world.expected["everything"]

    asyncio.run(scene())


def test_merged_engines_refuse_by_name(world: World) -> None:
    async def scene() -> None:
        given = {"mine": world.adapters["attention"]}
        async with await opened(world, adapters=given, adapter_mode="merged") as engine:
            assert await tokens(engine, "mine") == await tokens(engine) == world.expected["attention"]
            for call in (engine.adapters.load("x", str(world.adapters["dora"])), engine.adapters.unload("mine")):
                with pytest.raises(lm.UsageError, match="LM-ADAPTER-MODE"):
                    await call
            await engine.sleep(2)
            await engine.wake()
            assert await tokens(engine, "mine") == world.expected["attention"]

    asyncio.run(scene())


def test_closing_ends_a_load_that_is_under_way(world: World) -> None:
    async def scene() -> None:
        engine = await opened(world)
        loads = [asyncio.create_task(engine.adapters.load(name, str(path))) for name, path in world.adapters.items()]
        await asyncio.sleep(0.02)
        await asyncio.wait_for(engine.close(), 30)
        outcomes = await asyncio.wait_for(asyncio.gather(*loads, return_exceptions=True), 10)
        assert isinstance(outcomes[-1], lm.ResourceError)
        assert {getattr(outcome, "code", "loaded") for outcome in outcomes} <= {"loaded", "LM-ENGINE-DRAINING"}
        with pytest.raises(lm.ResourceError, match="closing"):
            await engine.adapters.load("late", str(world.adapters["dora"]))

    asyncio.run(scene())
