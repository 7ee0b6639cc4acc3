"""Real weights, written by others: one layer that is kept with the tests, and the demo model where it has been made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import loadmaster as lm
from tiny_models import reference_logits, relative_error

BASE = Path(__file__).parents[1] / "data" / "base"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
DEMO = CACHE / "loadmaster" / "demo" / "SmolLM2-135M-Instruct"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_one_layer_with_nine_heads(ranks: int) -> None:
    expected = load_file(BASE / "expected" / "logits.safetensors")
    with lm.Engine(BASE, tensor_parallel=ranks, executor="inline", dtype="float32") as engine:
        logits = engine.logits(expected["input_ids"][0].tolist())
    assert relative_error(logits, expected["logits"][0]) < 1e-5


@pytest.mark.skipif(not DEMO.is_dir(), reason="the demo model is made by `make demo`")
def test_the_demo_model_at_any_size() -> None:
    from transformers import AutoModelForCausalLM

    ids = [504, 3575, 282, 4649, 314, 1, 49151, 7]
    reference = reference_logits(AutoModelForCausalLM.from_pretrained(DEMO, dtype="float32", attn_implementation="eager"), ids)
    for ranks in (1, 2, 3, 4):
        with lm.Engine(DEMO, tensor_parallel=ranks, executor="inline", dtype="float32") as engine:
            assert relative_error(engine.logits(ids), reference) < 1e-5, ranks
