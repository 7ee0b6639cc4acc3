"""A budget holds: ranks side by side stay inside a control group's limit, and what a refusal names can be had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import pytest

import loadmaster as lm
from loadmaster import memory
from loadmaster.serving import AsyncEngine, EngineSettings, SamplingParams
from tiny_models import make_model, save_model
from tree_memory import tree_memory

MIB = 1 << 20
SIZES: dict[str, Any] = {  # 32 KiB of keys and values per token
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 4,
    "max_position_embeddings": 4096,
    "eos_token_id": None,
}
SMALL: dict[str, Any] = {"max_batch_tokens": 64, "max_running": 16, "adapter_bytes": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama", **SIZES), tmp_path_factory.mktemp("llama"))


class Watched:
    """A control group with a limit, played by files that show what this process and its children have taken since."""

    def __init__(self, folder: Path, nbytes: int) -> None:
        self._folder = folder
        self._before = tree_memory()
        self._done = Event()
        self._thread = Thread(target=self._watch)
        self.limit = nbytes
        self.peak = 0
        (folder / "memory.max").write_text(str(nbytes))
        (folder / "memory.stat").write_text("anon 0\ninactive_file 0\nactive_file 0\n")
        (folder / "meminfo").write_text(f"MemAvailable: {1 << 40} kB\n")

    def available(self) -> int:
        """Read what is left, as an engine does."""
        (self._folder / "memory.current").write_text(str(self._taken()))
        return AVAILABLE(self._folder / "meminfo", self._folder, self._folder / "none")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(10.0)

    def _taken(self) -> int:
        taken = max(0, tree_memory() - self._before)
        self.peak = max(self.peak, taken)
        return taken

    def _watch(self) -> None:
        while not self._done.wait(0.05):
            self._taken()


AVAILABLE: Callable[..., int] = memory.available_memory


def test_two_processes_stay_inside_a_limit_while_a_full_batch_fills_the_blocks(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context is as long as the refusal says, and keys and values get all that is left."""
    options: dict[str, Any] = {"tensor_parallel": 2, "executor": "multiprocess", "read_mode": "direct"}
    wishes: dict[str, Any] = {"max_batch_tokens": 256, "max_running": 64, "adapter_bytes": 0}

    async def scene() -> None:
        settings = EngineSettings(max_model_len=length, **wishes)
        async with await AsyncEngine.open(folder, settings=settings, **options) as engine:
            assert engine.max_model_len == length
            each = engine.stats().kv_blocks_total * 16 // 64
            params = SamplingParams(max_tokens=8)
            await asyncio.gather(*(ended(engine.generate([3 + one] * (each - 8), params)) for one in range(64)))

    with Watched(tmp_path, 500 * MIB) as group:
        monkeypatch.setattr(memory, "available_memory", group.available)
        with pytest.raises(lm.ResourceError) as caught:
            AsyncEngine(folder, settings=EngineSettings(max_model_len=4096, **wishes), **options)
        length = int(caught.value.hints[0].replace(",", "").split()[1])
        assert 256 < length < 4096
        asyncio.run(scene())
    assert 0.8 * group.limit < group.peak < group.limit


async def ended(deltas: Any) -> None:
    async for delta in deltas:
        assert not delta.error


NAMES = ("max_model_len", "kv_bytes")


@pytest.mark.parametrize(("ranks", "wishes"), [(1, [NAMES[1:], NAMES]), (2, [NAMES[:1], NAMES[1:]])])
def test_what_a_refusal_names_can_be_had(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, wishes: Sequence[Sequence[str]]
) -> None:
    def load(**settings: Any) -> AsyncEngine:
        group = Watched(tmp_path, 90 * MIB)
        monkeypatch.setattr(memory, "available_memory", group.available)
        options: dict[str, Any] = {"tensor_parallel": ranks, "executor": "inline", "read_mode": "direct"}
        return AsyncEngine(folder, settings=EngineSettings(**settings, **SMALL), **options)

    with pytest.raises(lm.ResourceError) as caught:
        load(max_model_len=4096)
    assert caught.value.code == "LM-MEMORY-FIT"
    words = caught.value.hints[0].replace(",", "").split()
    named = {"max_model_len": int(words[1]), "kv_bytes": int(words[-1])}
    for names in wishes:
        engine = load(**{name: named[name] for name in names})
        assert 16 <= engine.max_model_len == named["max_model_len"] < 4096
        asyncio.run(serve_and_close(engine))


async def serve_and_close(engine: AsyncEngine) -> None:
    """Fill the longest context."""
    answer = [delta async for delta in engine.generate([5] * (engine.max_model_len - 3), SamplingParams(max_tokens=9))]
    assert sum(len(delta.ids) for delta in answer) == 3
    await engine.close()
