"""A tiny model with adapters by the real peft, and peft's own greedy answers for each of them."""

from __future__ import annotations

import asyncio
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from loadmaster.serving import AsyncEngine, Delta, SamplingParams
from peft_adapters import adapt
from tiny_models import IDS, greedy, make_model, save_model

TOKENS: Final = 12
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "attention": {"r": 4, "target_modules": ["q_proj", "v_proj", "o_proj"]},
    "everything": {"r": 8, "lora_alpha": 16},
    "dora": {"r": 2, "use_dora": True, "target_modules": ["down_proj", "up_proj"]},
}
"""Adapters by name. Their factors are large enough for other answers than the base's."""


class World(NamedTuple):
    """Folders, and the greedy continuation of `IDS` by adapter name; the empty name is the base."""

    model: Path
    adapters: dict[str, Path]
    expected: dict[str, tuple[int, ...]]


def make_world(root: Path) -> World:
    """Write the model and its adapters."""
    base = make_model("llama", eos_token_id=None)
    base.generation_config.eos_token_id = None  # type: ignore[union-attr]
    model = save_model(base, root / "model")
    adapters, expected = {}, {"": greedy(base, IDS, TOKENS)}
    for seed, (name, config) in enumerate(CONFIGS.items(), 1):
        adapters[name] = adapt(model, root / name, seed, **config).adapter
        expected[name] = reference(model, adapters[name])
    assert len(set(expected.values())) == len(expected)
    return World(model, adapters, expected)


def reference(model: Path, adapter: Path) -> tuple[int, ...]:
    """Return peft's greedy continuation of `IDS`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
        return greedy(PeftModel.from_pretrained(plain, str(adapter)).eval(), IDS, TOKENS)


def other_content(world: World, folder: Path, seed: int = 9) -> Path:
    """Write another adapter of the same shape as `attention`."""
    return adapt(world.model, folder, seed, **CONFIGS["attention"]).adapter


def truncated(adapter: Path, folder: Path) -> Path:
    """Write a copy of an adapter whose file ends early."""
    shutil.copytree(adapter, folder)
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return folder


async def deltas(engine: AsyncEngine, adapter: str = "", prompt: Sequence[int] = IDS) -> list[Delta]:
    """Return what comes of one request."""
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    return [delta async for delta in engine.generate(prompt, params, adapter=adapter)]


async def tokens(engine: AsyncEngine, adapter: str = "", prompt: Sequence[int] = IDS) -> tuple[int, ...]:
    """Return the tokens of one request."""
    return tuple(token for delta in await deltas(engine, adapter, prompt) for token in delta.ids)


class Stream:
    """Requests one after the other, in several lanes, until it is left; then `answers` are (name, tokens)."""

    def __init__(self, engine: AsyncEngine, names: Sequence[str]) -> None:
        self._engine = engine
        self._names = names
        self._ended = False
        self.answers: list[tuple[str, tuple[int, ...]]] = []

    async def __aenter__(self) -> Stream:
        self._lanes = [asyncio.create_task(self._lane(name)) for name in self._names]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended = True
        await asyncio.gather(*self._lanes)

    async def _lane(self, name: str) -> None:
        while not self._ended:
            self.answers.append((name, await tokens(self._engine, name)))
