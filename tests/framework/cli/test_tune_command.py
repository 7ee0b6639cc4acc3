"""`loadmaster tune`: batches of a tiny model are read, and what is found is used when the same plan is served."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from command_line import Invoke
from loadmaster.serving import AsyncEngine, EngineSettings
from runnable_model import write_runnable_model

QUICK = ("--prompt-tokens", "8", "--answer-tokens", "4")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runnable_model(tmp_path_factory.mktemp("tune") / "model")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "loadmaster" / "tune"


def test_the_result_is_kept_and_served(invoke: Invoke, model: Path, cache: Path) -> None:
    files = sorted(path.name for path in model.iterdir())
    outcome = invoke("tune", str(model), *QUICK, "--limit", "8", "--gain", "0")
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["batch", "tokens/s", "gain", "step", "first", "token"]
    assert [line.split()[0] for line in lines[1:3]] == ["4", "8"]
    choice = re.search(r"^choice +max_running ([48]): (8 gain|16 are more than the limit of 8)", outcome.out, re.MULTILINE)
    assert choice, outcome.out
    (file,) = cache.iterdir()
    assert lines[-1].split() == ["kept", str(file)]
    assert re.findall(r"^tune +batch (\d+): [\d.]+ tokens/s$", outcome.err, re.MULTILINE)[:2] == ["4", "8"]
    assert sorted(path.name for path in model.iterdir()) == files

    async def serve(settings: EngineSettings) -> tuple[EngineSettings, list[str]]:
        async with await AsyncEngine.open(model, settings=settings) as engine:
            assert engine.model.plan.digest == file.stem
            return engine.settings, [notice for notice in engine.model.notices if "tuned" in notice]

    settings, notices = asyncio.run(serve(EngineSettings(max_model_len=16)))
    assert settings == EngineSettings(max_model_len=16, max_running=int(choice[1]))
    (notice,) = notices
    assert notice.startswith(f"max_running {choice[1]}, as tuned on ")
    settings, notices = asyncio.run(serve(EngineSettings(max_model_len=16, max_running=3)))
    assert (settings.max_running, notices) == (3, [])


def test_ranks_and_a_small_reservation(invoke: Invoke, model: Path, cache: Path) -> None:
    # 3 key-value heads of 8 float32 in 2 layers: 16 tokens take 6144 bytes, and a request of these 2 blocks.
    options = ("--tp", "2", "--executor", "inline", "--kv-bytes", "73728", "--gain", "0", "--json")
    outcome = invoke("tune", str(model), *QUICK, *options)
    assert outcome.code == 0, outcome.err
    tuning = outcome.document["tuning"]
    assert tuning["place"]["ranks"] == 2
    assert [reading["batch"] for reading in tuning["readings"]] == [4]
    assert (tuning["max_running"], tuning["why"]) == (4, "keys and values have room for 6")
    assert outcome.document["file"] == str(cache / f"{tuning['digest']}.json")


def test_nothing_is_loaded_where_nothing_can_be_kept(invoke: Invoke, model: Path, cache: Path) -> None:
    cache.parent.parent.write_text("in the way")
    outcome = invoke("tune", str(model))
    assert outcome.code == 6
    assert "LM-TUNE-FOLDER" in outcome.err
    assert "loadmaster rank=" not in outcome.err


def test_a_model_that_is_too_short_says_so(invoke: Invoke, model: Path, cache: Path) -> None:
    outcome = invoke("tune", str(model), "--prompt-tokens", "600", "--limit", "4")
    assert outcome.code == 6
    assert "LM-SERVE-LENGTH" in outcome.err
    assert list(cache.iterdir()) == []
