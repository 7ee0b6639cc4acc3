"""Weights change, files go and engines close at the worst moment of an adapter's life: nobody else notices."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loadmaster as lm
from adapter_workers import services_of
from hot_adapters import World, deltas, make_world, other_content, tokens
from loadmaster.adapters import residence
from loadmaster.serving import AsyncEngine, EngineSettings, SamplingParams
from loadmaster_hookspecs.events import Event, Notice
from tiny_models import IDS

SETTINGS = EngineSettings(block_size=4, max_batch_tokens=16, max_running=8)
LIMIT = 30.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def after(monkeypatch: pytest.MonkeyPatch, name: str, happens: Callable[[], None]) -> None:
    """Have something happen once, after the first call of a function that `residence` uses."""
    own = getattr(residence, name)

    def called(*args: Any) -> Any:
        monkeypatch.setattr(residence, name, own)
        result = own(*args)
        happens()
        return result

    monkeypatch.setattr(residence, name, called)


def test_files_that_go_during_a_load_leave_nothing_on_the_ranks(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes = shutil.copytree(world.adapters["everything"], tmp_path / "goes")
    with lm.Engine(world.model) as engine:
        after(monkeypatch, "bring_in", lambda: shutil.rmtree(goes))
        with pytest.raises(lm.UsageError, match="no such"):
            engine.adapters.load("it", goes)
        assert all(not service._loaded.adapters._residents for service in services_of(engine))
        engine.adapters.load("it", world.adapters["everything"])
        assert engine.generate([IDS], max_tokens=12, adapter="it")[0].token_ids == world.expected["everything"]


def test_weights_that_change_before_an_adapter_can_be_named_refuse_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, changed = threading.Event(), threading.Event()

    def wait_for_the_change() -> None:
        arrived.set()
        assert changed.wait(LIMIT)

    async def scene() -> None:
        async with await AsyncEngine.open(world.model, settings=SETTINGS, executor="inline") as engine:
            after(monkeypatch, "content_digest", wait_for_the_change)
            load = asyncio.create_task(engine.adapters.load("it", world.adapters["everything"]))
            assert await asyncio.to_thread(arrived.wait, LIMIT)
            await engine.update_weights(world.model)
            changed.set()
            with pytest.raises(lm.ResourceError, match="LM-ADAPTER-ASLEEP"):
                await load
            await engine.adapters.load("it", world.adapters["everything"])
            assert await tokens(engine, "it") == world.expected["everything"]

    asyncio.run(scene())


def test_weights_that_change_while_a_thread_loads_adapters_end_nothing(world: World) -> None:
    ended = threading.Event()
    codes: set[str] = set()

    def come_and_go() -> None:
        while not ended.is_set():
            try:
                engine.adapters.load("it", world.adapters["attention"])
                engine.adapters.unload("it")
            except lm.LoadmasterError as error:
                codes.add(error.code)

    with lm.Engine(world.model) as engine:
        thread = threading.Thread(target=come_and_go)
        thread.start()
        for _ in range(6):
            engine.update_weights(world.model)
        ended.set()
        thread.join(LIMIT)
        assert not thread.is_alive()
        assert codes <= {"LM-ADAPTER-ASLEEP"}
        assert engine.generate([IDS], max_tokens=12)[0].token_ids == world.expected[""]


@pytest.mark.parametrize("change", ["wake", "update"])
def test_requests_that_come_while_their_adapter_is_lost_fail_alone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    goes = shutil.copytree(world.adapters["attention"], tmp_path / "goes")

    async def scene() -> None:
        given = {"goes": goes, "stays": world.adapters["dora"]}
        async with await AsyncEngine.open(world.model, settings=SETTINGS, executor="inline", adapters=given) as engine:
            requests: list[asyncio.Task[Any]] = []
            asked = threading.Event()
            loop = asyncio.get_running_loop()

            def ask() -> None:
                requests.extend(asyncio.create_task(deltas(engine, name)) for name in given)
                loop.call_later(0.05, asked.set)

            async def change_weights() -> None:
                await (engine.wake() if change == "wake" else engine.update_weights(world.model))

            if change == "wake":
                await engine.sleep(2)
            swap = residence.Residence.bring_back

            def bring_back(self: Any, *args: Any) -> Any:
                loop.call_soon_threadsafe(ask)
                assert asked.wait(LIMIT)
                return swap(self, *args)

            monkeypatch.setattr(residence.Residence, "bring_back", bring_back)
            other_content(world, goes)
            await change_weights()
            lost, good = await asyncio.gather(*requests)
            assert lost[-1].finish_reason == "error"
            assert lost[-1].error == (
                "adapter goes cannot be loaded again and is dropped: the adapter's files changed while they were read"
            )
            assert tuple(token for delta in good for token in delta.ids) == world.expected["dora"]
            assert [info.name for info in engine.adapters.list()] == ["stays"]
            assert engine.stats().requests_failed == 1

    asyncio.run(scene())


def test_a_call_that_waits_with_an_adapter_that_is_lost_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes = shutil.copytree(world.adapters["attention"], tmp_path / "goes")
    errors: list[Exception] = []

    def ask() -> None:
        try:
            engine.generate([IDS], max_tokens=1, adapter="goes")
        except lm.UsageError as error:
            errors.append(error)

    with lm.Engine(world.model, adapters={"goes": goes}) as engine:
        thread = threading.Thread(target=ask)

        def begin() -> None:
            thread.start()
            while not engine.adapters.list()[0].using and thread.is_alive():
                pass

        other_content(world, goes)
        after(monkeypatch, "bring_in", begin)
        engine.update_weights(world.model)
        thread.join(LIMIT)
        assert [getattr(error, "code", "") for error in errors] == ["LM-USAGE-ADAPTER"]
        assert engine.generate([IDS], max_tokens=12)[0].token_ids == world.expected[""]


def test_loads_that_wait_behind_another_one_plan_nothing_once_the_engine_closes(world: World, tmp_path: Path) -> None:
    engine = lm.Engine(world.model)
    manager = engine.manager
    begun, closing = threading.Event(), threading.Event()
    planned: list[str] = []
    own = manager._planning.plan

    def plan(request: Any) -> Any:
        planned.append(request.name)
        begun.set()
        assert closing.wait(LIMIT)
        return own(request)

    manager._planning.plan = plan  # type: ignore[method-assign]
    loads = [manager.load(name, str(path)) for name, path in world.adapters.items()]
    assert begun.wait(LIMIT)
    thread = threading.Thread(target=engine.close)
    thread.start()
    while not manager.residence.closing and thread.is_alive():
        pass
    closing.set()
    thread.join(LIMIT)
    assert planned == ["attention"]
    for load in loads:
        with pytest.raises(lm.ResourceError, match="LM-ENGINE-DRAINING"):
            load.result(LIMIT)


def test_a_pin_that_is_set_while_other_content_arrives_stays_with_the_name(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = other_content(world, tmp_path / "second")
    with lm.Engine(world.model, adapters={"it": world.adapters["attention"]}) as engine:
        after(monkeypatch, "bring_in", lambda: engine.adapters.pin("it"))
        assert engine.adapters.load("it", second).pinned
        assert engine.adapters.list()[0].pinned


def test_an_observer_that_raises_about_a_lost_adapter_changes_nothing_else(world: World, tmp_path: Path) -> None:
    goes = shutil.copytree(world.adapters["attention"], tmp_path / "goes")

    def observe(event: Event) -> None:
        if isinstance(event, Notice) and "dropped" in event.text:
            raise ZeroDivisionError

    async def scene() -> None:
        given = {"goes": goes, "stays": world.adapters["dora"]}
        options: Any = {"executor": "inline", "adapters": given, "on_event": observe}
        async with await AsyncEngine.open(world.model, settings=SETTINGS, **options) as engine:
            await engine.sleep(2)
            shutil.rmtree(goes)
            lost, good = (asyncio.create_task(deltas(engine, name)) for name in given)
            await asyncio.sleep(0)
            with pytest.raises(ZeroDivisionError):
                await engine.wake()
            assert (await lost)[-1].finish_reason == "error"
            assert tuple(token for delta in await good for token in delta.ids) == world.expected["dora"]
            assert [info.name for info in engine.adapters.list()] == ["stays"]

    asyncio.run(scene())


def test_no_adapter_may_be_said_as_none(world: World) -> None:
    async def scene() -> None:
        async with await AsyncEngine.open(world.model, settings=SETTINGS, executor="inline") as engine:
            params = SamplingParams(max_tokens=1)
            for name in (None, ""):
                assert [delta.ids async for delta in engine.generate(IDS, params, adapter=name)] == [world.expected[""][:1]]
            assert [(each.name, each.requests) for each in engine.stats().adapters] == [("", 2)]

    asyncio.run(scene())
