"""One rank alone fails between collectives: the others learn of it at once, and what served before serves on, bit by bit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import loadmaster as lm
from adapter_workers import services_of
from failing_rank import WORDS, Failing, failing
from loadmaster.serving import AsyncEngine, EngineSettings, SamplingParams
from loadmaster_engine.run import groups
from loadmaster_engine.run.service import WorkerService
from loadmaster_plugins.transformers_models.lean import LeanLayer
from peft_adapters import adapt
from tiny_models import IDS

__all__ = ["failing"]

SETTINGS: Final = EngineSettings(max_running=4, kv_bytes=1 << 20)
QUANTISED: Final = Path(__file__).parents[2] / "data" / "gptq-4b-g64-asym-act"
TOKENS: Final = 32
SECONDS: Final = 60.0
"""What nothing here may take. Ranks that wait for others in a collective do so longer."""


@pytest.fixture(autouse=True)
def waits_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "COLLECTIVE_TIMEOUT", 2 * SECONDS)


@contextmanager
def at_once() -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < SECONDS


def options(executor: str, **more: Any) -> dict[str, Any]:
    return {"tensor_parallel": 2, "executor": executor, "plugins": ["failing_rank"], **more}


async def answer(engine: AsyncEngine) -> list[int]:
    return [token async for delta in engine.generate(IDS, SamplingParams(max_tokens=TOKENS)) for token in delta.ids]


@pytest.mark.parametrize(
    ("executor", "failures"),
    [("inline", [("trial", 0), ("attention", 1), ("both ways", 2)]), ("multiprocess", [("attention", 3)])],
)
def test_one_rank_alone_changes_nothing_for_those_that_are_served(
    old: Path, new: Path, executor: str, failures: list[tuple[str, int]], failing: Failing
) -> None:
    """A lean layer that one rank cannot run is lean on none; new weights that one rank cannot run are refused by all.

    Only a step that one rank cannot run ends all of them, with that rank's error.
    """
    said = [spoken(folder) for folder in (old, new)]

    async def scene() -> None:
        with failing.fails("lean", 1, "RuntimeError"), at_once():
            engine = await AsyncEngine.open(old, settings=SETTINGS, **options(executor))
        async with engine:
            if executor == "inline":
                assert [lean_layers(service) for service in services_of(engine.model)] == [[0], [0]]
            logits = engine.model.logits(IDS)
            for place, call in failures:
                running = asyncio.create_task(answer(engine))
                with failing.fails(place, call), at_once(), pytest.raises(lm.LoadmasterError, match=WORDS) as caught:
                    await engine.update_weights(new)
                assert caught.value.report.where["rank"] == 1, place
                assert await running == said[0], place
                assert np.array_equal(engine.model.logits(IDS), logits), place
            await engine.update_weights(new)
            assert await answer(engine) == said[1]
            with failing.fails("step"), at_once(), pytest.raises(lm.WorkerError, match=WORDS) as caught:
                engine.model.logits(IDS)
            assert caught.value.report.where["rank"] == 1
            with at_once(), pytest.raises(lm.WorkerError, match="LM-EXECUTOR-ENDED"):
                engine.model.logits(IDS)

    asyncio.run(scene())


def spoken(folder: Path) -> list[int]:
    with lm.Engine(folder) as engine:
        return list(engine.generate([IDS], max_tokens=TOKENS, temperature=0.0)[0].token_ids)


def lean_layers(service: WorkerService) -> list[int]:
    """Return which of a rank's layers are lean."""
    layers = service._loaded.model.module.get_submodule("model.layers")
    return [number for number, layer in enumerate(layers.children()) if isinstance(vars(layer).get("forward"), LeanLayer)]


def test_one_rank_that_cannot_merge_or_run_new_weights_where_nothing_is_served(
    old: Path, new: Path, tmp_path: Path, failing: Failing
) -> None:
    adapters = {"it": adapt(old, tmp_path / "adapter", use_dora=True).adapter}
    with lm.Engine(old, **options("inline", adapters=adapters, adapter_mode="merged")) as engine:
        before = engine.logits(IDS)
        for place, call in (("norms", 9), ("step", 1)):
            with failing.fails(place, call), at_once(), pytest.raises(lm.LoadmasterError, match=WORDS) as caught:
                engine.update_weights(new)
            assert caught.value.report.where["rank"] == 1
            assert np.array_equal(engine.logits(IDS), before)


def test_one_rank_that_cannot_multiply_by_quantised_weights(failing: Failing) -> None:
    with lm.Engine(QUANTISED, **options("inline")) as engine:
        before = engine.logits(IDS[:1])
        with failing.fails("product", 5), at_once(), pytest.raises(lm.WorkerError, match=WORDS) as caught:
            engine.update_weights(QUANTISED)
        assert caught.value.report.where["rank"] == 1
        assert np.array_equal(engine.logits(IDS[:1]), before)


@pytest.mark.parametrize("mode", ["live", "merged"])
def test_an_adapter_that_one_rank_cannot_take_at_the_start_is_told_of_by_that_rank(
    old: Path, tmp_path: Path, mode: Any, failing: Failing
) -> None:
    adapters = {"it": adapt(old, tmp_path / "adapter", use_dora=True).adapter}
    with failing.fails("norms", 3), at_once(), pytest.raises(lm.LoadmasterError, match=WORDS) as caught:
        lm.Engine(old, **options("inline", adapters=adapters, adapter_mode=mode))
    assert caught.value.report.where["rank"] == 1
