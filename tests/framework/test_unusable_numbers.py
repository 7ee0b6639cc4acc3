"""Values that are no numbers: adapters that hold some are refused, and what cannot be drawn fails its request alone."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch

import loadmaster as lm
from hot_adapters import TOKENS, World, deltas, make_world, tokens
from loadmaster.serving import AsyncEngine, EngineSettings
from loadmaster_hookspecs.adapters import AdapterMode
from peft_adapters import adapter_tensors, write_adapter_tensors
from tiny_models import IDS

SETTINGS = EngineSettings(block_size=4, max_batch_tokens=16, max_running=8)
ATTENTION = "base_model.model.model.layers.1.self_attn"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def changed(
    world: World,
    folder: Path,
    value: float,
    dtype: torch.dtype = torch.float32,
    place: tuple[str, int, int] = ("v_proj.lora_B", 3, 2),
) -> Path:
    """Write a copy of an adapter with one other value, in a row and a column of a tensor."""
    shutil.copytree(world.adapters["attention"], folder)
    tensors = {name: tensor.to(dtype) for name, tensor in adapter_tensors(folder).items()}
    tensors[f"{ATTENTION}.{place[0]}.weight"][place[1], place[2]] = value
    write_adapter_tensors(folder, tensors)
    return folder


def byte_of(folder: Path, place: tuple[str, int, int], itemsize: int) -> int:
    """Return the byte of the file that a value begins at."""
    data = (folder / "adapter_model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + length])[f"{ATTENTION}.{place[0]}.weight"]
    return int(8 + length + entry["data_offsets"][0] + (place[1] * entry["shape"][1] + place[2]) * itemsize)


@pytest.mark.parametrize(
    ("value", "dtype", "ranks", "place", "said"),
    [
        (float("nan"), torch.float32, 1, ("v_proj.lora_B", 3, 2), "nan as float32, at"),
        (float("-inf"), torch.float32, 2, ("o_proj.lora_A", 2, -1), "inf as float32, at"),
        (float("nan"), torch.bfloat16, 2, ("o_proj.lora_A", 1, 0), "nan as float32, to which it is cast, at"),
        (1e300, torch.float64, 1, ("v_proj.lora_B", 0, 0), "inf as float32, to which it is cast, at"),
    ],
)
def test_an_adapter_with_a_value_that_is_no_number_is_refused_with_its_place(
    world: World, tmp_path: Path, value: float, dtype: torch.dtype, ranks: int, place: tuple[str, int, int], said: str
) -> None:
    size = adapter_tensors(world.adapters["attention"])[f"{ATTENTION}.{place[0]}.weight"].shape[1]
    place = (place[0], place[1], place[2] % size)
    folder = changed(world, tmp_path / "bad", value, dtype, place)
    with lm.Engine(world.model, tensor_parallel=ranks, executor="inline") as engine:
        with pytest.raises(lm.IntegrityError) as caught:
            engine.adapters.load("bad", folder)
        report = caught.value.report
        assert report.code == "LM-ADAPTER-VALUES"
        rank = ranks - 1 if place[0] == "o_proj.lora_A" and place[2] else 0
        assert report.where == {
            "adapter": "bad",
            "rank": rank,
            "file": "adapter_model.safetensors",
            "tensor": f"{ATTENTION}.{place[0]}.weight",
            "offset": byte_of(folder, place, dtype.itemsize),
        }
        assert report.why.startswith(said)
        assert engine.adapters.list() == ()
        assert engine.generate([IDS], max_tokens=TOKENS)[0].token_ids == world.expected[""]


@pytest.mark.parametrize("mode", ["live", "merged"])
def test_adapters_that_come_with_the_model_are_checked_too(world: World, tmp_path: Path, mode: AdapterMode) -> None:
    folder = changed(world, tmp_path / "bad", float("nan"))
    with pytest.raises(lm.IntegrityError, match="LM-ADAPTER-VALUES"):
        lm.Engine(world.model, adapters={"bad": folder}, adapter_mode=mode)


def test_a_request_without_numbers_fails_and_the_others_of_its_batch_go_on(world: World, tmp_path: Path) -> None:
    huge = changed(world, tmp_path / "huge", 3e38)

    async def scene() -> None:
        async with await AsyncEngine.open(
            world.model, settings=SETTINGS, executor="inline", adapters={"huge": huge, "good": world.adapters["dora"]}
        ) as engine:
            names = ["huge", "", "good", "huge"]
            answers = await asyncio.gather(*(deltas(engine, name) for name in names))
            for name, answer in zip(names, answers, strict=True):
                if name == "huge":
                    assert [(each.ids, each.finish_reason) for each in answer] == [((), "error")]
                    assert "[LM-LOGITS-NAN]" in answer[-1].error
                    assert "huge" in answer[-1].error
                else:
                    key = "dora" if name else ""
                    assert tuple(token for delta in answer for token in delta.ids) == world.expected[key]
            stats = engine.stats()
            assert (stats.requests_failed, stats.requests_done, stats.generated_tokens) == (2, 2, 2 * TOKENS)
            assert await tokens(engine) == world.expected[""]
            assert stats.kv_blocks_used == 0

    asyncio.run(scene())


def test_a_batch_with_a_prompt_without_numbers_is_refused_and_the_next_one_runs(world: World, tmp_path: Path) -> None:
    huge = changed(world, tmp_path / "huge", 3e38)
    with lm.Engine(world.model, adapters={"huge": huge}) as engine:
        with pytest.raises(lm.IntegrityError, match="LM-LOGITS-NAN") as caught:
            engine.generate([IDS], max_tokens=3, adapter="huge")
        assert caught.value.report.where == {"prompt": 0, "token": 0}
        assert engine.generate([IDS], max_tokens=TOKENS)[0].token_ids == world.expected[""]
