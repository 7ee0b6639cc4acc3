"""Results on disk: what was kept is found again, and whatever is not surely about this plan on this machine is left alone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import loadmaster as lm
from loadmaster.machine import processor
from loadmaster.serving.settings import UNTUNED_RUNNING, EngineSettings
from loadmaster.serving.tuned import with_tuned
from loadmaster.tuning.climb import Reading
from loadmaster.tuning.kept import Tuning, find, folder, keep, make_folder, place_of
from sample_plan import sample_plan

PLAN = sample_plan()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "loadmaster" / "tune"


@pytest.fixture
def tuning() -> Tuning:
    reading = Reading(batch=4, tokens_per_second=8.5, step_seconds=0.5, first_token_seconds=0.25, seconds=2.0)
    return Tuning(
        digest=PLAN.digest,
        place=place_of(PLAN),
        day="2026-01-31",
        max_running=4,
        why="8 gain 3%, less than 10%",
        prompt_tokens=128,
        max_batch_tokens=512,
        readings=(reading,),
    )


def test_what_was_kept_is_found_and_used(tuning: Tuning, cache: Path) -> None:
    make_folder()
    assert find(PLAN) == (None, "")
    assert keep(tuning) == cache / f"{PLAN.digest}.json"
    assert find(PLAN) == (tuning, "max_running 4, as tuned on 2026-01-31")
    better = msgspec.structs.replace(tuning, max_running=8)
    keep(better)
    assert find(PLAN)[0] == better
    assert [path.name for path in cache.iterdir()] == [f"{PLAN.digest}.json"]
    assert with_tuned(EngineSettings(block_size=4), PLAN) == (
        EngineSettings(block_size=4, max_running=8),
        "max_running 8, as tuned on 2026-01-31",
    )
    assert with_tuned(EngineSettings(max_running=5), PLAN) == (EngineSettings(max_running=5), "")


def test_without_a_result_nothing_is_written_or_said(cache: Path) -> None:
    assert with_tuned(EngineSettings(), PLAN) == (EngineSettings(max_running=UNTUNED_RUNNING), "")
    assert not cache.exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[:100], "truncated"),
        (lambda text: b"\xff\xfe", "malformed"),
        (lambda text: b"", "truncated"),
        (lambda text: text.replace(b'"max_running": 4', b'"max_running": 0'), "max_running"),
        (lambda text: text.replace(b'"max_running": 4', b'"max_running": true'), "max_running"),
        (lambda text: text.replace(b'"version": 1', b'"version": 2'), "version"),
        (lambda text: text.replace(b'"why"', b'"who"'), "who"),
        (lambda text: text.replace(PLAN.digest.encode(), b"0" * 64), "another plan"),
        (lambda text: text.replace(b'"ranks": 2', b'"ranks": 3'), "tuned on .*3 ranks; this is .*2 ranks"),
        (lambda text: text.replace(b'"cores": ', b'"cores": 1'), r"tuned on .*1\d+ cores"),
        (lambda text: b" " * (1 << 20) + text, "truncated"),
    ],
)
def test_damaged_and_foreign_files_are_ignored_with_a_line(tuning: Tuning, change: Callable[[bytes], bytes], why: str) -> None:
    make_folder()
    path = keep(tuning)
    changed = change(path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    settings, line = with_tuned(EngineSettings(), PLAN)
    assert settings.max_running == UNTUNED_RUNNING
    assert line.startswith(f"{path} is ignored: ")
    assert re.search(why, line), line


def test_what_is_no_file_is_ignored_with_a_line(cache: Path) -> None:
    (cache / f"{PLAN.digest}.json").mkdir(parents=True)
    assert "is ignored: " in find(PLAN)[1]


def test_a_write_that_fails_leaves_the_earlier_result(tuning: Tuning, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder()
    keep(tuning)

    def broken(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(KeyboardInterrupt):
        keep(msgspec.structs.replace(tuning, max_running=8))
    assert find(PLAN)[0] == tuning
    assert len(list(cache.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_an_error_before_anything_is_measured(cache: Path) -> None:
    cache.parent.parent.joinpath("loadmaster").write_text("in the way")
    with pytest.raises(lm.ResourceError, match="could not be kept") as caught:
        make_folder()
    assert caught.value.code == "LM-TUNE-FOLDER"


def test_the_folder_follows_the_users_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder() == tmp_path / "loadmaster" / "tune"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert folder() == Path("/home/someone/.cache/loadmaster/tune")


def test_a_place_names_processor_cores_and_ranks(tmp_path: Path) -> None:
    assert str(place_of(PLAN)).endswith(f", {len(os.sched_getaffinity(0))} cores, 2 ranks")
    info = tmp_path / "cpuinfo"
    info.write_text(
        "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Fast(R) One\n\nprocessor\t: 1\nmodel\t\t: 7\n"
    )
    assert processor(info) == "Fast(R) One, cpu family 6, model 85"
    info.write_text("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
    assert processor(info) == "CPU implementer 0x41, CPU part 0xd40"
    assert processor(tmp_path / "missing") == os.uname().machine
