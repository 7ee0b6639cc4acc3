"""Adapters that come to running workers in slices and go again: the bits of a load at start, memory back, bad ones told of."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import loadmaster as lm
from adapter_workers import Piece, Workers
from loadmaster_engine.load import adapters as loading
from loadmaster_engine.load.arena import Arena, reserve
from loadmaster_engine.run.adapters.resident import Resident
from loadmaster_engine.serve.adapter_messages import AdapterState
from loadmaster_hookspecs.errors import LoadmasterError, WorkerError
from loadmaster_hookspecs.plan import AdapterPlan
from loadmaster_plugins.lora import product
from peft_adapters import Made, adapt, engine, make_adapter
from tiny_models import IDS, make_model, save_model

RICH: dict[str, Any] = {"use_dora": True, "bias": "all", "modules_to_save": ["lm_head"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_adapter(tmp_path_factory.mktemp("hot"), sizes={"attention_bias": True}, **RICH)


def codes(states: list[AdapterState]) -> list[str]:
    return [state.error.code if state.error else "" for state in states]


def probabilities(workers: Workers, adapter: int) -> npt.NDArray[np.float64]:
    return workers.step(Piece(0, IDS, 0, adapter))[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_slices_give_the_bits_of_a_load_at_start(made: Made, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PIECE_BYTES", 512)
    with engine(made.model, made.adapter, ranks) as started:
        expected = started.logits(IDS, adapter="it")
    with Workers(made.model, ranks) as workers:
        before = probabilities(workers, 0)
        plan = workers.plan(made.adapter)
        states = workers.open(7, plan)
        assert [state.total for state in states] == [part.bytes_planned for part in plan.ranks]
        assert [state.nbytes for state in states] == [part.bytes for part in plan.ranks]
        slices = 0
        while any(state.moved < state.total for state in states):
            moved = [state.moved for state in states]
            states = workers.move(7, 0.0)
            assert all(new.moved > old or new.moved == new.total for new, old in zip(states, moved, strict=True))
            assert np.array_equal(probabilities(workers, 0), before)
            slices += 1
        assert slices > 10
        while not all(state.ready for state in states):
            built = states[0].built
            states = workers.build(7, 5)
            assert {state.built for state in states} == {min(built + 5, states[0].parts)}
        assert np.array_equal(workers.logits(7), expected)
        assert np.array_equal(probabilities(workers, 0), before)


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def bring_to(workers: Workers, number: int, state: str, plan: AdapterPlan) -> None:
    workers.open(number, plan)
    if state == "half moved":
        workers.move(number, 0.0)
    if state == "failed":
        workers.build(number)
    if state in ("half built", "ready", "in use"):
        workers.move(number)
        workers.build(number, 3 if state == "half built" else 1000)
    if state == "in use":
        probabilities(workers, number)


@pytest.mark.parametrize("ranks", [1, 2])
def test_closing_gives_the_memory_back_at_once(made: Made, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory: list[weakref.ref[Any]] = []

    def watched(nbytes: int, device: str, rank: int) -> Arena:
        arena = reserve(nbytes, device, rank)
        memory.append(weakref.ref(arena._memory))  # type: ignore[attr-defined]
        return arena

    monkeypatch.setattr(loading, "reserve", watched)
    monkeypatch.setattr(loading, "PIECE_BYTES", 512)
    with Workers(made.model, ranks) as workers, no_collector():
        before, hooks, plan = probabilities(workers, 0), count_hooks(workers), workers.plan(made.adapter)
        for number, state in enumerate(("opened", "half moved", "half built", "ready", "in use", "failed"), 1):
            memory.clear()
            bring_to(workers, number, state, plan)
            assert len(memory) == ranks
            assert all((ref() is None) == (state == "failed") for ref in memory), state
            workers.close(number)
            assert [ref() for ref in memory] == [None] * ranks, state
            assert not open_files(made.adapter)
            assert count_hooks(workers) == hooks
            assert np.array_equal(probabilities(workers, 0), before)
        assert workers.close(1) == [AdapterState(number=1)] * ranks
        with pytest.raises(LoadmasterError, match="LM-SERVICE-ADAPTER"):
            workers.move(1)


def test_an_adapter_that_fails_when_it_was_ready_is_no_more_part_of_any_module(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise WorkerError("LM-ADAPTER-RANKS", "the ranks did not build the adapter together")

    with Workers(made.model) as workers:
        before, hooks = probabilities(workers, 0), count_hooks(workers)
        assert workers.bring(1, made.adapter)[0].ready
        assert count_hooks(workers) > hooks
        monkeypatch.setattr(Resident, "build", fail)
        assert codes(workers.build(1)) == ["LM-ADAPTER-RANKS"]
        assert count_hooks(workers) == hooks
        assert np.array_equal(probabilities(workers, 0), before)


def test_closing_the_engine_closes_what_was_on_its_way(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "PIECE_BYTES", 512)
    with Workers(made.model) as workers:
        workers.open(1, workers.plan(made.adapter))
        workers.move(1, 0.0)
        assert open_files(made.adapter)
    assert not open_files(made.adapter)


def open_files(folder: Path) -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(str(folder))]


def count_hooks(workers: Workers) -> int:
    modules = [module for service in workers.services() for module in service._loaded.model.module.modules()]
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)


def test_an_adapter_of_the_load_can_be_closed_too(made: Made) -> None:
    with Workers(made.model, adapters={"it": made.adapter}) as workers:
        base = probabilities(workers, 0)
        assert np.abs(probabilities(workers, 1) - base).max() > 0.1
        (state,) = workers.close(1)
        assert state.ready
        assert state.nbytes > 0
        assert np.array_equal(probabilities(workers, 0), base)


def shorten(file: Path) -> None:
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-8])


@pytest.mark.parametrize(
    ("damage", "code", "when", "ranks"),
    [
        (shorten, "LM-FILE-CHANGED", "before opening", 2),
        (shorten, "LM-FILE-CHANGED", "before moving", 1),
        (Path.unlink, "LM-FILE-MISSING", "before moving", 2),
    ],
)
def test_a_damaged_file_is_told_of_and_touches_nobody(
    damage: Callable[[Path], None], code: str, when: str, ranks: int, tmp_path: Path
) -> None:
    model = save_model(make_model("llama"), tmp_path / "model")
    good, bad = (adapt(model, tmp_path / name, target_modules=["q_proj", "o_proj"]) for name in ("good", "bad"))
    with Workers(model, ranks) as workers:
        workers.bring(1, good.adapter)
        before = workers.step(Piece(0, IDS, 0, 0), Piece(1, IDS, 0, 1))
        plan = workers.plan(bad.adapter)
        if when == "before opening":
            damage(bad.adapter / "adapter_model.safetensors")
        states = workers.open(2, plan)
        if when == "before moving":
            assert codes(states) == [""] * ranks
            damage(bad.adapter / "adapter_model.safetensors")
            states = workers.move(2)
        assert codes(states) == [code] * ranks
        assert all(state.error is not None and state.error.where["adapter"] == "it" for state in states)
        assert {state.nbytes for state in states} == {0}
        assert codes(workers.move(2)) == codes(workers.build(2)) == codes(workers.close(2)) == [code] * ranks
        after = workers.step(Piece(0, IDS, 0, 0), Piece(1, IDS, 0, 1))
        assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("after", [0, 3])
def test_a_rank_that_cannot_build_keeps_no_other_waiting(made: Made, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Workers(made.model, 2) as workers:
        workers.bring(1, made.adapter)
        before = workers.step(Piece(0, IDS, 0, 0), Piece(1, IDS, 0, 1))
        working, lock, calls = product.magnitude_factor, Lock(), count()

        def failing(*arguments: Any) -> torch.Tensor:
            with lock:
                number = next(calls)
            if number == 2 * after:
                raise MemoryError("no memory for norms")
            return working(*arguments)

        workers.open(2, workers.plan(made.adapter))
        workers.move(2)
        monkeypatch.setattr(product, "magnitude_factor", failing)
        assert sorted(codes(workers.build(2))) == ["LM-ADAPTER-RANKS", "LM-PLUGIN-FAILED"]
        monkeypatch.undo()
        workers.close(2)
        assert all(state.ready for state in workers.bring(3, made.adapter))
        for adapter in (1, 3):
            again = workers.step(Piece(0, IDS, 0, 0), Piece(1, IDS, 0, adapter))
            assert all(np.array_equal(old, new) for old, new in zip(before, again, strict=True))


def test_building_before_the_bytes_are_there_is_told_of_by_all(made: Made) -> None:
    with Workers(made.model, 2) as workers:
        workers.open(1, workers.plan(made.adapter))
        assert codes(workers.build(1)) == ["LM-SERVICE-ORDER"] * 2


def test_numbers_are_used_once(made: Made) -> None:
    with Workers(made.model) as workers:
        plan = workers.plan(made.adapter)
        workers.open(1, plan)
        with pytest.raises(lm.WorkerError, match="LM-SERVICE-ORDER"):
            workers.open(1, plan)
