"""Adapters that come and go on an `Engine`: between its calls, from any thread, also on quantised models, without a leak."""

from __future__ import annotations

import gc
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import loadmaster as lm
from hot_adapters import TOKENS, World, make_world
from loadmaster.adapters import moving, residence
from loadmaster_engine.load.heap import trim_heap
from peft_adapters import TOLERANCE, adapt
from tiny_models import IDS, make_model, relative_error, save_model

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def answer(engine: lm.Engine, adapter: str | None = None) -> tuple[int, ...]:
    return engine.generate([IDS], max_tokens=TOKENS, temperature=0.0, adapter=adapter)[0].token_ids


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_life_of_an_adapter(world: World, ranks: int, tmp_path: Path) -> None:
    made = adapt(world.model, tmp_path / "made", r=3)
    given = {"attention": world.adapters["attention"]}
    with lm.Engine(world.model, tensor_parallel=ranks, executor="inline", adapters=given) as engine:
        assert sum(rank.bytes_adapters for rank in engine.report.ranks) == engine.adapters.list()[0].nbytes
        assert all(rank.seconds["load"] > rank.seconds["adapters"] > 0 for rank in engine.report.ranks)
        assert " adapter_bytes=" in str(engine.report)
        info = engine.adapters.load("made", made.adapter)
        assert engine.adapters.load("made", str(made.adapter)) == info
        assert relative_error(engine.logits(IDS, adapter="made"), made.logits) < TOLERANCE
        assert [each.name for each in engine.adapters.list()] == ["attention", "made"]
        assert answer(engine, "attention") == world.expected["attention"]
        assert engine.adapters.unload("attention") > 0
        assert engine.adapters.unload("made") == info.nbytes
        assert answer(engine) == world.expected[""]
        with pytest.raises(lm.UsageError, match="loaded: none"):
            answer(engine, "made")
        with pytest.raises(lm.UsageError, match="cannot be called"):
            engine.adapters.load("", made.adapter)


def test_threads_answer_while_adapters_come_and_go(world: World) -> None:
    with lm.Engine(world.model) as engine, ThreadPoolExecutor(2) as pool:
        stop = threading.Event()

        def ask() -> list[tuple[int, ...]]:
            answers = []
            while not stop.is_set():
                answers.append(answer(engine))
            return answers

        jobs = [pool.submit(ask) for _ in range(2)]
        for _ in range(2):
            for name in world.adapters:
                engine.adapters.load("it", world.adapters[name])
                assert answer(engine, "it") == world.expected[name]
            engine.adapters.unload("it")
        stop.set()
        assert all(each == world.expected[""] for job in jobs for each in job.result(60))


def test_files_that_change_while_they_are_read_are_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(world.adapters["attention"], tmp_path / "changing")
    file = folder / "adapter_model.safetensors"

    def bring_in_and_change(*args: Any) -> None:
        moving.bring_in(*args)
        file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")

    with lm.Engine(world.model) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(residence, "bring_in", bring_in_and_change)
            with pytest.raises(lm.IntegrityError, match="LM-ADAPTER-CHANGED"):
                engine.adapters.load("it", folder)
        assert engine.adapters.list() == ()
        engine.adapters.load("it", folder)
        assert answer(engine) == world.expected[""]


@pytest.mark.parametrize("base", ["gptq-4b-g64-asym-act", "awq-4b-g64"])
def test_a_quantised_base(base: str) -> None:
    adapter = DATA / "lora-r8-attn"
    with lm.Engine(DATA / base, adapters={"start": adapter}, dtype="float32") as engine:
        expected = engine.logits(IDS, adapter="start")
        engine.adapters.load("hot", adapter)
        assert (engine.logits(IDS, adapter="hot") == expected).all()
        assert (engine.logits(IDS) != expected).any()


def test_limits_hold_for_adapters_that_come_with_the_model(world: World) -> None:
    given = {name: world.adapters[name] for name in ("attention", "everything")}
    with pytest.raises(lm.PlanError, match="8 > 4"):
        lm.Engine(world.model, adapters=given, max_adapter_rank=4)
    with pytest.raises(lm.ResourceError, match="LM-ADAPTER-BUDGET"):
        lm.Engine(world.model, adapters=given, adapter_bytes=10_000)


def resident() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def settled() -> int:
    """Return the resident bytes once everything that can be given back is: other tests of the process leave garbage too."""
    gc.collect()
    trim_heap()
    return resident()


def test_fifty_loads_and_unloads_leave_nothing_behind(tmp_path: Path) -> None:
    model = save_model(make_model("llama", hidden_size=256, intermediate_size=1024), tmp_path / "model")
    adapter = adapt(model, tmp_path / "adapter", r=100, target_modules=["gate_proj", "up_proj"]).adapter
    with lm.Engine(model) as engine:
        for turn in range(50):
            nbytes = engine.adapters.load("it", adapter).nbytes
            assert engine.adapters.unload("it") == nbytes
            if turn == 9:
                before = settled()
        assert 1_900_000 < nbytes < 3_000_000
        assert settled() - before < nbytes
