"""The benchmark with a 4-bit model: its checkpoint, who takes part, goals, the page, and one small run from end to end."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import msgspec
import pytest

import loadmaster
from bench import main as bench_main
from bench.checkpoint import SIZES
from bench.environments import ENVIRONMENTS
from bench.quantised_checkpoint import GROUP, QUANTISED_SIZES, plain_size, quantised_checkpoint, quantised_tensors
from bench.quantised_contestants import QUANTISED_PEERS, quantised_contestants
from bench.quantised_goals import quantised_goals
from bench.records import Measurement, Report
from bench.runs.decoding import decode_rate


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tiny(cache: Path) -> Path:
    return quantised_checkpoint(cache / "loadmaster" / "bench" / "models", "tiny-4bit")


def _measured(name: str, number: int, load: float, **detail: float) -> Measurement:
    content = {"contestant": name, "condition": "hot", "round": number, "seconds": {"load": load}, "detail": detail}
    return msgspec.convert(content, Measurement)


def test_a_4_bit_checkpoint_is_symmetric_gptq_of_the_first_version(tiny: Path) -> None:
    import torch
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = {}
    for file in tiny.glob("*.safetensors"):
        found |= load_file(file)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        stored.name: stored.shape for stored in quantised_tensors(SIZES["tiny"])
    }
    scales = found["model.layers.0.mlp.down_proj.scales"].float()
    assert scales.min() >= 0.0029
    assert scales.max() < 0.0035
    words = found["model.layers.0.mlp.down_proj.qweight"].view(-1)
    codes = torch.cat([(words >> shift) & 15 for shift in range(0, 32, 4)])
    assert torch.bincount(codes, minlength=16).min() > 0.9 * len(codes) / 16
    plan = loadmaster.plan(tiny, kernel="torch-int4").data
    matrices = plan.ranks[0].packed
    assert len(matrices) == 7 * SIZES["tiny"].layers
    assert {(matrix.bits, matrix.group_size, matrix.params["zeros"]) for matrix in matrices} == {(4, GROUP, "v1")}


def test_sizes_are_those_of_plain_checkpoints() -> None:
    assert {plain_size(size) for size in QUANTISED_SIZES} <= set(SIZES)
    nbytes = sum(stored.nbytes for stored in quantised_tensors(SIZES["3g"]))
    assert 1.0e9 < nbytes < 1.05e9


def test_everyone_has_a_script_and_peers_an_environment() -> None:
    everyone = quantised_contestants(QUANTISED_PEERS)
    scripts = Path(bench_main.__file__).parent / "runs"
    assert [one.name for one in everyone if not (scripts / f"{one.script}.py").is_file()] == []
    assert {one.peer for one in everyone} - {""} == set(QUANTISED_PEERS)
    assert set(QUANTISED_PEERS) <= set(ENVIRONMENTS)
    assert len({one.name for one in everyone}) == len(everyone)


def test_tokens_per_second_are_those_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("bench.runs.decoding.time.perf_counter", lambda: now[0])

    def generate(count: int) -> list[int]:
        now[0] += 3.0 + 0.5 * (count - 1)
        return list(range(count))

    rate, answer = decode_rate(generate, 16)
    assert rate == pytest.approx(2.0)
    assert answer == list(range(17))
    with pytest.raises(ValueError, match="5 tokens, not 17"):
        decode_rate(lambda count: list(range(min(count, 5))), 16)


def test_goals_say_whether_they_are_met() -> None:
    plan = {"planned_bytes": 1e9, "grown_bytes": 1.01e9, "amplification": 1.0}
    done = [
        _measured("floor-tp2", 1, 1.0),
        _measured("loadmaster-tp2-int4-direct", 1, 1.25, tokens_per_second=6.0, **plan),
        _measured("loadmaster-tp2-dequant-mapped", 1, 1.5, tokens_per_second=1.0, amplification=1.2),
        _measured("loadmaster-tp2-bf16", 1, 3.0, tokens_per_second=8.0, planned_bytes=3e9, grown_bytes=3.11e9),
    ]
    goals = {goal.text: goal for goal in quantised_goals(done)}
    expected = {
        "torch-int4, TP 2: load and repacking beside the floor": (1.25, True),
        "dequant, mapped, TP 2: load beside the floor": (1.5, False),
        "TP 2: node amplification": (1.2, False),
        "torch-int4, TP 2: growth of all processes off the plan's bytes": (0.01, True),
        "torch-int4, TP 2: bytes saved against bfloat16, off the plan's": (0.05, False),
        "torch-int4, TP 2: tokens per second beside loadmaster-tp2-bf16": (0.75, False),
        "torch-int4, TP 2: tokens per second beside loadmaster-tp2-dequant-mapped": (6.0, True),
    }
    for text, (value, met) in expected.items():
        assert goals[text].measured == pytest.approx(value), text
        assert goals[text].met is met, text
    assert goals["torch-int4, TP 1: load and repacking beside the floor"].met is None
    assert goals["torch-int4, TP 2: tokens per second beside vllm-tp2"].met is None


@pytest.mark.timeout(600)
def test_a_small_run_from_end_to_end(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    names = ["floor-tp1", "loadmaster-tp1-int4-direct"]
    out = bench_main.main(
        ["--size", "tiny-4bit", "--rounds", "1", "--peers", "--ballast", "off", "--only", *names,
         "--out", str(tmp_path / "result.json")]
    )  # fmt: skip
    report = msgspec.json.decode(out.read_bytes(), type=Report)
    assert [one.error for one in report.measurements] == [""] * 2
    by_name = {one.contestant: one for one in report.measurements}
    int4 = by_name["loadmaster-tp1-int4-direct"]
    assert len(int4.tokens) == 17
    assert int4.detail["tokens_per_second"] > 0
    assert by_name["floor-tp1"].nbytes == int4.nbytes
    assert int4.detail["planned_bytes"] > int4.nbytes * 0.9
    assert {goal.text: goal.met for goal in report.goals}["TP 1: node amplification"] is True
    page = out.with_suffix(".md").read_text()
    assert all(f"| {name} |" in page for name in names)
    assert "### Decoding" in page
