"""The memory check: control groups, page cache, refusal with numbers, and memory that others give back meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import loadmaster as lm
from loadmaster import memory
from loadmaster.machine import memory_limit
from tiny_models import make_model, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama"), tmp_path_factory.mktemp("llama"))


def machine(folder: Path, *, available_kb: int, limit: str, current: int = 0, cache: int = 0) -> dict[str, Path]:
    (folder / "meminfo").write_text(f"MemTotal: 999 kB\nMemAvailable: {available_kb} kB\n")
    (folder / "memory.max").write_text(limit)
    (folder / "memory.current").write_text(str(current))
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache - 10}\nactive_file 10\n")
    return {"proc": folder / "meminfo", "cgroup": folder}


def test_page_cache_does_not_count_as_used(tmp_path: Path) -> None:
    assert memory.available_memory(**machine(tmp_path, available_kb=1000, limit="max")) == 1_024_000
    assert (
        memory.available_memory(**machine(tmp_path, available_kb=1000, limit="800000", current=700000, cache=600000)) == 700_000
    )
    assert memory.available_memory(**machine(tmp_path, available_kb=100, limit="800000", current=0, cache=10)) == 102_400
    assert memory.available_memory(**machine(tmp_path, available_kb=1000, limit="500", current=900, cache=10)) == 0


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_of_nested_groups_counts(tmp_path: Path, version: int) -> None:
    """A group without a limit of its own lies in one that has one, which other groups use too."""
    own, root = tmp_path / "own", tmp_path / "root"
    mount, limit, usage, prefix = (
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        if version == 1
        else (root, "memory.max", "memory.current", "")
    )
    own.write_text("5:cpu:/other\n4:memory:/jobs/mine\n" if version == 1 else "0::/jobs/mine\n")
    inner = mount / "jobs" / "mine"
    inner.mkdir(parents=True)
    for folder, value, used, cache in ((inner, 900_000, 100_000, 0), (inner.parent, 1_000_000, 800_000, 300_000)):
        (folder / limit).write_text(f"{value}\n")
        (folder / usage).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 7\n{prefix}inactive_file {cache}\n{prefix}active_file 0\n")
    (tmp_path / "meminfo").write_text("MemAvailable: 9999 kB\n")
    assert memory.available_memory(tmp_path / "meminfo", root, own) == 1_000_000 - 500_000
    assert memory_limit(root, own) == 900_000


def test_a_model_that_does_not_fit_is_refused_before_anything_is_reserved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[str] = []
    monkeypatch.setattr(memory, "available_memory", lambda: 300_000)
    with pytest.raises(lm.ResourceError) as caught:
        lm.Engine(folder, read_mode="direct", on_event=lambda event: stages.append(getattr(event, "stage", "")))
    assert caught.value.code == "LM-MEMORY-FIT"
    assert "0.00 GB available" in str(caught.value)
    assert caught.value.hints[-1] == "use --dtype bfloat16"
    assert "reserve" not in stages
    assert "spawn" not in stages


def test_mapped_weights_that_exceed_memory_load_with_a_notice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 300_000)
    with lm.Engine(folder, read_mode="mapped") as engine:
        assert any("will be read again in every step" in notice for notice in engine.notices)
    monkeypatch.setattr(memory, "available_memory", lambda: 10**10)
    with lm.Engine(folder, read_mode="mapped") as engine:
        assert not any("will be read again" in notice for notice in engine.notices)


@pytest.mark.parametrize("after", [12e9, 10e9])
def test_free_memory_that_rises_or_stays_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch, after: float) -> None:
    readings: Iterator[int] = iter([int(10e9), int(after)])
    monkeypatch.setattr(memory, "available_memory", lambda: next(readings))
    with lm.Engine(folder) as engine:
        lines = [notice for notice in engine.notices if "free memory" in notice]
        assert engine.report.memory_usable == 10_000_000_000
    assert len(lines) == 1
    assert f"from 10.0 GB to {after / 1e9:.1f} GB" in lines[0]


def test_free_memory_that_falls_is_said_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([10_000, 9_000])
    monkeypatch.setattr(memory, "available_memory", lambda: next(readings) * 1_000_000)
    with lm.Engine(folder) as engine:
        assert not any("free memory" in notice for notice in engine.notices)
        assert engine.report.memory_usable == 9_000_000_000
