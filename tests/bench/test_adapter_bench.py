"""The benchmark of hot loading: which times count as a load's, goals, and one small run from end to end."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import msgspec
import pytest

from bench import main as bench_main
from bench.adapter_contestants import adapter_contestants
from bench.adapter_goals import adapter_goals
from bench.adapter_names import EVERYONE, INLINE, TWO, WORKER
from bench.records import Measurement, Report
from bench.runs.adapter_run import Spans
from bench.runs.adapter_stream import Gap


def test_everyone_has_a_script_and_goals() -> None:
    scripts = Path(bench_main.__file__).parent / "runs"
    everyone = adapter_contestants()
    assert tuple(one.name for one in everyone) == EVERYONE
    assert all((scripts / f"{one.script}.py").is_file() for one in everyone)


def test_gaps_that_touch_a_load_are_its_own_and_those_at_rest_lie_within() -> None:
    spans = Spans()
    spans.loads = [(10.0, 11.0), (20.0, 21.0)]
    spans.rests = [(12.0, 15.0)]
    gaps = [Gap(9.0, 2.0), Gap(12.0, 0.25), Gap(14.5, 1.0), Gap(18.0, 2.5), Gap(20.2, 0.1), Gap(21.0, 0.125)]
    assert spans.during_load(gaps, 0) == [2.0]
    assert spans.during_load(gaps) == [2.5, 0.1]
    assert spans.at_rest(gaps) == [0.25]


def test_goals_say_whether_they_are_met() -> None:
    def measured(name: str, number: int, **detail: float) -> Measurement:
        content = {"contestant": name, "condition": "hot", "round": number, "detail": detail}
        return msgspec.convert(content, Measurement)

    done = [
        measured(INLINE, 1, wrong=0, ratio_median=1.25, ratio_p95=1.75, memory_off=0.005),
        measured(WORKER, 1, wrong=1, ratio_median=1.0, ratio_p95=1.0, memory_off=0.02),
        measured(WORKER, 2, wrong=1, ratio_median=1.2, ratio_p95=2.0, memory_off=0.0),
    ]
    goals = adapter_goals(done)
    assert [goal.met for goal in goals if goal.text.startswith(f"{INLINE}:")] == [True, True, False, True]
    assert [goal.measured for goal in goals if goal.text.startswith(f"{WORKER}:")] == [1.0, 1.1, 1.5, 0.01]
    assert [goal.met for goal in goals if goal.text.startswith(f"{TWO}:")] == [None] * 4


@pytest.mark.timeout(600)
def test_a_small_run_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    out = bench_main.main(
        ["--size", "tiny-adapters", "--rounds", "1", "--cache", "hot", "--only", INLINE, "--out", str(tmp_path / "result.json")]
    )
    report = msgspec.json.decode(out.read_bytes(), type=Report)
    (one,) = report.measurements
    assert one.error == ""
    assert one.detail["loads"] == 3
    assert one.detail["answered"] > 3
    assert (one.detail["failed"], one.detail["changed"]) == (0, 0)
    assert one.detail["ratio_median"] == pytest.approx(one.detail["load_median"] / one.detail["rest_median"])
    assert {goal.text: goal.met for goal in report.goals}[f"{INLINE}: failed or changed answers"] is True
    assert "during the first load" in out.with_suffix(".md").read_text()
