"""Other weights take the place of those that serve, or are refused and change no bit; requests go on meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import loadmaster as lm
from adapter_workers import services_of
from loadmaster import memory
from loadmaster.serving import AsyncEngine, EngineSettings, SamplingParams
from loadmaster.serving import engine as serving_engine
from loadmaster_engine.run.messages import ShadowState, decode
from loadmaster_hookspecs.events import Event, StageStarted
from peft_adapters import adapt
from runnable_model import write_tokenizer
from tiny_models import IDS, make_model, save_model

SETTINGS = EngineSettings(max_running=4, kv_bytes=1 << 20)
QUANTISED = Path(__file__).parents[2] / "data" / "gptq-4b-g64-asym-act"
PACKED = "gptq_model-4bit-64g.safetensors"
RANKS = pytest.mark.parametrize("ranks", [1, 2])


def another_size(folder: Path) -> None:
    save_model(make_model("llama", hidden_size=128), folder)


def a_tensor_short(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def truncated(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1000])


R17 = pytest.mark.parametrize(
    ("damage", "words"),
    [
        (another_size, "hidden_size 128 instead of 64"),
        (a_tensor_short, "model.layers.1.mlp.up_proj.weight"),
        (truncated, "1000 are missing"),
    ],
)


@RANKS
@R17
def test_weights_that_cannot_be_leave_every_bit_as_it_was(
    old: Path, new: Path, tmp_path: Path, ranks: int, damage: Callable[[Path], None], words: str
) -> None:
    broken = shutil.copytree(new, tmp_path / "broken")
    damage(broken)
    with lm.Engine(old, tensor_parallel=ranks, executor="inline") as engine:
        before, digest = engine.logits(IDS), engine.plan.data.digest
        with pytest.raises(lm.LoadmasterError, match=words):
            engine.update_weights(broken)
        assert np.array_equal(engine.logits(IDS), before)
        assert engine.plan.data.digest == digest
        engine.update_weights(new)
        with lm.Engine(new, tensor_parallel=ranks, executor="inline") as fresh:
            assert np.array_equal(engine.logits(IDS), fresh.logits(IDS))
            assert engine.plan.data.digest == fresh.plan.data.digest
        assert engine.report.bytes_read == engine.report.bytes_planned
        assert not np.array_equal(engine.logits(IDS), before)


def shortened_while_it_is_loaded(folder: Path) -> Callable[[Event], None]:
    """Return an observer that cuts the file off after it was planned from, when the update comes to its load."""

    def observe(event: Event) -> None:
        if isinstance(event, StageStarted) and event.stage == "load" and (folder / "cut").exists():
            truncated(folder)

    return observe


@pytest.mark.parametrize("executor", ["inline", "multiprocess"])
def test_ranks_that_fail_while_they_load_go_on_with_the_old_weights(
    old: Path, new: Path, tmp_path: Path, executor: str
) -> None:
    broken = shutil.copytree(new, tmp_path / "broken")
    observe = shortened_while_it_is_loaded(broken)
    with lm.Engine(old, tensor_parallel=2, executor=executor, on_event=observe) as engine:
        before = engine.logits(IDS)
        (broken / "cut").touch()
        with pytest.raises(lm.IntegrityError) as caught:
            engine.update_weights(broken)
        assert caught.value.code == "LM-FILE-CHANGED"
        assert caught.value.report.where["rank"] in (0, 1)
        assert np.array_equal(engine.logits(IDS), before)


@pytest.mark.parametrize("mode", ["mapped", "direct", "node_once"])
def test_every_way_of_reading_gives_the_same_bits(old: Path, new: Path, mode: Any) -> None:
    options: dict[str, Any] = {"tensor_parallel": 2, "executor": "inline", "read_mode": mode}
    with lm.Engine(old, **options) as engine, lm.Engine(new, **options) as fresh:
        engine.update_weights(new)
        assert np.array_equal(engine.logits(IDS), fresh.logits(IDS))
        assert engine.plan.data.digest == fresh.plan.data.digest


def test_a_type_of_its_own_is_refused_and_cast_where_one_was_asked_for(old: Path, new: Path, tmp_path: Path) -> None:
    narrow = save_model(make_model("llama", seed=1, eos_token_id=None).bfloat16(), tmp_path)
    with lm.Engine(old) as engine, pytest.raises(lm.PlanError, match="the new weights are BF16, those that run F32"):
        engine.update_weights(narrow)
    with lm.Engine(old, dtype="float32") as engine, lm.Engine(narrow, dtype="float32") as fresh:
        engine.update_weights(narrow)
        assert np.array_equal(engine.logits(IDS), fresh.logits(IDS))


def test_a_second_set_that_has_no_room_is_refused_with_numbers(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lm.Engine(old, read_mode="direct") as engine:
        before = engine.logits(IDS)
        with monkeypatch.context() as patch:
            patch.setattr(memory, "available_memory", lambda: 300_000)
            with pytest.raises(lm.ResourceError, match="a second set of weights does not fit") as caught:
                engine.update_weights(new)
        assert caught.value.code == "LM-MEMORY-FIT"
        assert np.array_equal(engine.logits(IDS), before)


@pytest.mark.parametrize("mode", ["live", "merged"])
@RANKS
def test_adapters_are_made_again_on_the_new_weights(old: Path, new: Path, tmp_path: Path, ranks: int, mode: Any) -> None:
    adapter = adapt(old, tmp_path / "adapter", use_dora=True).adapter
    options: dict[str, Any] = {
        "tensor_parallel": ranks,
        "executor": "inline",
        "adapters": {"mine": adapter},
        "adapter_mode": mode,
    }
    with lm.Engine(old, **options) as engine, lm.Engine(new, **options) as fresh:
        engine.update_weights(new)
        for name in ("mine", None):
            assert np.array_equal(engine.logits(IDS, adapter=name), fresh.logits(IDS, adapter=name))


def negated(folder: Path) -> Path:
    """Copy the quantised model with other scales and embeddings."""
    shutil.copytree(QUANTISED, folder)
    tensors = load_file(folder / PACKED)
    changed = {name: -value if name.endswith(("scales", "embed_tokens.weight")) else value for name, value in tensors.items()}
    save_file(changed, folder / PACKED, {"format": "pt"})
    return folder


@RANKS
def test_quantised_weights(tmp_path: Path, ranks: int) -> None:
    other = negated(tmp_path / "other")
    options: dict[str, Any] = {"tensor_parallel": ranks, "executor": "inline"}
    ids = [5, 9, 61, 3]
    with lm.Engine(QUANTISED, **options) as engine, lm.Engine(other, **options) as fresh:
        before = engine.logits(ids)
        engine.update_weights(other)
        assert np.array_equal(engine.logits(ids), fresh.logits(ids))
        assert not np.array_equal(engine.logits(ids), before)
        tensors = load_file(other / PACKED)
        tensors.pop(next(name for name in tensors if name.endswith("qzeros")))
        short = shutil.copytree(other, tmp_path / "short")
        save_file(tensors, short / PACKED, {"format": "pt"})
        with pytest.raises(lm.LoadmasterError, match="qzeros"):
            engine.update_weights(short)
        assert np.array_equal(engine.logits(ids), fresh.logits(ids))


async def answer(engine: AsyncEngine, count: int, adapter: str = "") -> list[int]:
    deltas = engine.generate(IDS, SamplingParams(max_tokens=count), adapter=adapter)
    return [token async for delta in deltas for token in delta.ids]


def spoken(folder: Path, prompt: list[int], count: int) -> list[int]:
    with lm.Engine(folder) as engine:
        return list(engine.generate([prompt], max_tokens=count, temperature=0.0)[0].token_ids)


@RANKS
def test_requests_that_run_go_on_with_the_new_weights(old: Path, new: Path, ranks: int) -> None:
    async def scene() -> None:
        options: dict[str, Any] = {"tensor_parallel": ranks, "executor": "inline"}
        async with await AsyncEngine.open(old, settings=SETTINGS, **options) as engine:
            assert await answer(engine, 32) == spoken(old, IDS, 32)
            running = [asyncio.create_task(answer(engine, 110)) for _ in range(3)]
            await engine.update_weights(new)
            for tokens in await asyncio.gather(*running):
                assert len(tokens) == 110
            # Prefixes that the old weights computed are not used any more.
            assert await answer(engine, 32) == spoken(new, IDS, 32)
            await engine.sleep(2)
            await engine.wake()
            assert await answer(engine, 32) == spoken(new, IDS, 32)

    asyncio.run(scene())


def test_the_tokens_before_the_change_are_the_old_weights_and_those_after_it_the_new_ones(old: Path, new: Path) -> None:
    async def scene() -> None:
        async with await AsyncEngine.open(old, settings=SETTINGS) as engine:
            tokens: list[int] = []
            update: asyncio.Task[None] | None = None
            async for delta in engine.generate(IDS, SamplingParams(max_tokens=110)):
                tokens += delta.ids
                update = update or asyncio.create_task(engine.update_weights(new))
            assert update is not None
            await update
            theirs = spoken(old, IDS, 110)
            change = next((place for place in range(110) if tokens[place] != theirs[place]), 110)
            assert tokens[change:] == spoken(new, IDS + tokens[:change], 110)[: 110 - change]

    asyncio.run(scene())


@pytest.mark.parametrize("size", [128, 64])
def test_a_refused_update_changes_no_answer_of_requests_that_run(old: Path, tmp_path: Path, size: int) -> None:
    broken = save_model(make_model("llama", seed=1, hidden_size=size, eos_token_id=None), tmp_path)
    observe = shortened_while_it_is_loaded(broken)

    async def scene() -> None:
        async with await AsyncEngine.open(old, settings=SETTINGS, on_event=observe) as engine:
            (broken / "cut").touch()
            expected = await answer(engine, 110)
            running = [asyncio.create_task(answer(engine, 110)) for _ in range(3)]
            with pytest.raises(lm.LoadmasterError):
                await engine.update_weights(broken)
            assert await asyncio.gather(*running) == [expected] * 3
            assert engine.stats().preemptions == 0

    asyncio.run(scene())


def resident() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_the_old_weights_memory_is_given_back_and_that_of_weights_that_are_refused(tmp_path: Path) -> None:
    model = make_model("llama", hidden_size=512, intermediate_size=4096, num_hidden_layers=4)
    nbytes = sum(parameter.numel() * 4 for parameter in model.parameters())
    save_model(model, tmp_path / "whole")
    del model
    broken = shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    with lm.Engine(tmp_path / "whole", read_mode="direct", on_event=shortened_while_it_is_loaded(broken)) as engine:
        engine.update_weights(tmp_path / "whole")
        loaded = resident()
        (broken / "cut").touch()
        with pytest.raises(lm.IntegrityError):
            engine.update_weights(broken)
        for _ in range(2):
            engine.update_weights(tmp_path / "whole")
        assert resident() - loaded < 0.5 * nbytes


def test_one_thing_at_a_time(old: Path, new: Path) -> None:
    """An update keeps others out, and sleep; sleep keeps updates out; closing breaks one off."""

    async def scene() -> None:
        async with await AsyncEngine.open(old, settings=SETTINGS) as engine:
            update = asyncio.create_task(engine.update_weights(new))
            while not engine.model.updating:
                await asyncio.sleep(0)
            for refused in (engine.update_weights(new), engine.sleep(1)):
                with pytest.raises(lm.UsageError, match="LM-UPDATE-BUSY"):
                    await refused
            await update
            await engine.sleep(1)
            with pytest.raises(lm.UsageError, match="LM-ENGINE-ASLEEP"):
                await engine.update_weights(new)
            await engine.wake()
            last = asyncio.create_task(engine.update_weights(old))
            while not engine.model.updating:
                await asyncio.sleep(0)
        with pytest.raises(lm.LoadmasterError, match=r"LM-UPDATE-CLOSED|LM-ENGINE-DRAINING"):
            await last

    asyncio.run(scene())


def test_live_adapters_that_came_meanwhile_go_on_with_the_new_weights(old: Path, new: Path, tmp_path: Path) -> None:
    adapter = adapt(old, tmp_path / "adapter").adapter

    async def scene() -> None:
        async with await AsyncEngine.open(old, settings=SETTINGS) as engine:
            await engine.adapters.load("mine", str(adapter))
            running = [asyncio.create_task(answer(engine, 60, "mine")) for _ in range(2)]
            await engine.update_weights(new)
            assert [len(tokens) for tokens in await asyncio.gather(*running)] == [60, 60]
            with lm.Engine(new, adapters={"mine": adapter}) as fresh:
                expected = fresh.generate([IDS], max_tokens=32, temperature=0.0, adapter="mine")[0].token_ids
            assert tuple(await answer(engine, 32, "mine")) == expected
            assert await answer(engine, 32) == spoken(new, IDS, 32)

    asyncio.run(scene())


def test_weights_that_find_no_moment_are_forgotten_and_the_next_update_works(
    old: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    async def scene() -> None:
        async with await AsyncEngine.open(old, settings=SETTINGS, executor="inline") as engine:
            own = engine._model.between_steps

            def with_a_busy_loop(swap: Any) -> Any:
                monkeypatch.setattr(serving_engine, "TURN_TIMEOUT", 0.05)
                engine._loop.between_steps(lambda: goes_on.wait(30))
                return own(swap)

            engine._model.between_steps = with_a_busy_loop
            with pytest.raises(lm.ResourceError, match="no moment between two steps"):
                await engine.update_weights(new)
            goes_on.set()
            monkeypatch.undo()
            (service,) = services_of(engine.model)
            assert service._shadow is not None
            assert service._shadow.loaded is None
            assert await answer(engine, 5) == spoken(old, IDS, 5)
            engine._model.between_steps = own
            await engine.update_weights(new)
            assert await answer(engine, 5) == spoken(new, IDS, 5)

    asyncio.run(scene())


def test_ranks_that_have_changed_weights_are_not_asked_to_forget_them_in_vain(old: Path, new: Path) -> None:
    with lm.Engine(old, tensor_parallel=2, executor="inline") as engine:
        engine.update_weights(new)
        before = engine.logits(IDS)
        states = [decode(result.body, ShadowState) for result in engine._ranks.call_in_turn("shadow_drop", b"")]
        assert states == [ShadowState(), ShadowState()]
        assert np.array_equal(engine.logits(IDS), before)


def test_the_tokenizer_stays_when_the_first_folder_goes(old: Path, new: Path, tmp_path: Path) -> None:
    first = shutil.copytree(old, tmp_path / "first")
    write_tokenizer(first)
    with lm.Engine(first, executor="inline") as engine:
        engine.update_weights(new)
        shutil.rmtree(first)
        assert engine.tokenizer.decode(engine.tokenizer.encode("still here")) == "still here"
