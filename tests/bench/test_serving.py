"""The benchmark of serving: its workload, who takes part, goals, the page, and one small run from end to end."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

import msgspec
import pytest

from bench import main as bench_main
from bench.environments import ENVIRONMENTS
from bench.records import Measurement, Report
from bench.runs.serving_workload import PROMPT, Prompts, WrongCount, measure, prompts, timed
from bench.serving_contestants import SERVING_PEERS, serving_contestants
from bench.serving_goals import serving_goals
from bench.serving_names import INLINE, PAIRS, SINGLE, TRANSFORMERS, TWO, VLLM


def test_everyone_has_a_script_and_peers_an_environment() -> None:
    everyone = serving_contestants(SERVING_PEERS)
    names = [one.name for one in everyone]
    scripts = Path(bench_main.__file__).parent / "runs"
    assert [one.name for one in everyone if not (scripts / f"{one.script}.py").is_file()] == []
    assert {one.peer for one in everyone} - {""} == set(SERVING_PEERS) <= set(ENVIRONMENTS)
    assert len(set(names)) == len(names)
    assert {name for pair in PAIRS for name in pair} | {TRANSFORMERS} <= set(names)


def test_all_prompts_differ_and_are_the_same_for_everyone() -> None:
    asked = prompts(32, PROMPT, 0)
    assert asked == prompts(32, PROMPT, 0)
    assert {len(prompt) for prompt in asked} == {PROMPT}
    beginnings = [tuple(prompt[:16]) for repeat in range(3) for prompt in prompts(32, PROMPT, repeat)]
    assert len(set(beginnings)) == len(beginnings)


def test_rates_are_answers_over_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("bench.runs.serving_workload.time.perf_counter", lambda: now[0])

    def serve(asked: Prompts, tokens: int) -> list[list[int]]:
        now[0] += len(asked[0]) / 1000 + 0.5 * tokens
        return [[len(asked)] * tokens for _ in asked]

    options = argparse.Namespace(batches=[1, 4], answer=8, first=[500], repeats=3)
    figures, firsts = measure(serve, options)
    assert figures == pytest.approx({"rate_1": 8 / 4.128, "rate_4": 32 / 4.128, "first_500": 1.0})
    assert firsts == [4] * 4
    with pytest.raises(WrongCount, match=r"\[3, 3\] tokens, not 4"):
        timed(lambda asked, _: [[1, 2, 3] for _ in asked], [[1], [2]], 4)


def _measured(name: str, **detail: float) -> Measurement:
    return msgspec.convert({"contestant": name, "condition": "hot", "round": 1, "detail": detail}, Measurement)


def test_goals_say_whether_they_are_met() -> None:
    done = [
        _measured(SINGLE, rate_1=20.0, rate_32=60.0, first_128=0.2),
        _measured(VLLM, rate_1=25.0, rate_32=80.0, first_128=0.1),
        _measured(INLINE, rate_1=30.0),
        _measured(TRANSFORMERS, rate_1=10.0),
    ]
    goals = {(goal.how, goal.text): goal for goal in serving_goals(done)}
    beside = f"{SINGLE} / {VLLM}"
    assert goals[beside, f"tokens per second, batch 1, beside {VLLM}"].met is False
    assert goals[beside, f"tokens per second, batch 32, beside {VLLM}"].met is True
    assert goals[beside, f"first token after 128 tokens, beside {VLLM}"].met is False
    assert goals[f"{INLINE} / {TRANSFORMERS}", f"tokens per second, batch 1, beside {TRANSFORMERS}"].measured == 3.0
    assert goals[beside, f"tokens per second, batch 8, beside {VLLM}"].met is None


@pytest.mark.timeout(600)
def test_a_small_run_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    out = bench_main.main(
        ["--size", "tiny-serve", "--rounds", "1", "--peers", "--only", SINGLE, "--out", str(tmp_path / "result.json")]
    )
    report = msgspec.json.decode(out.read_bytes(), type=Report)
    assert [one.error for one in report.measurements] == [""]
    assert report.settings.ballast == "off"
    assert {"rate_1", "rate_2", "first_128"} == set(report.measurements[0].detail)
    assert len(report.measurements[0].tokens) == 2
    assert TWO not in report.about
    assert f"| {SINGLE} |" in out.with_suffix(".md").read_text()
