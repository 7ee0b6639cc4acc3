"""Small checkpoints that auto-gptq, gptqmodel and autoawq wrote, against the logits of their own dequantised weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file

import loadmaster as lm
from tiny_models import relative_error

DATA = Path(__file__).parents[1] / "data"
TOLERANCE = 1e-5


@pytest.mark.parametrize(
    ("name", "ranks", "tolerance"),
    [
        ("gptq-4b-g64-sym", (1, 2), TOLERANCE),
        ("gptq-8b-g64-sym", (1, 3), TOLERANCE),
        ("gptq-4b-g64-asym-act", (1, 2, 3), TOLERANCE),
        ("gptqv2-4b-g64-asym", (1, 3), 2e-3),
        ("awq-4b-g64", (1, 2, 3), TOLERANCE),
    ],
)
def test_logits_are_those_of_the_producers_own_weights(name: str, ranks: tuple[int, ...], tolerance: float) -> None:
    expected = load_file(DATA / name / "expected" / "logits.safetensors")
    for size in ranks:
        with lm.Engine(DATA / name, tensor_parallel=size, executor="inline", dtype="float32", kernel="dequant") as engine:
            assert relative_error(engine.logits(expected["input_ids"][0].tolist()), expected["logits"][0]) < tolerance, size
            assert engine.report.amplification == 1.0
            assert not [finding for finding in engine.plan.findings if "GPTQ" in finding.code or "AWQ" in finding.code]


def test_the_plan_shows_what_is_quantised() -> None:
    plan = lm.plan(DATA / "gptq-4b-g64-asym-act", tensor_parallel=2)
    weights = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536
    assert sum(role["quantised"] for role in plan.ledger.roles) == weights // 2
