"""The families that people load equal transformers' own float32 logits at any size, with heads that do not divide evenly."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

import loadmaster as lm
from family_census import IDS, random_model
from tiny_models import greedy, reference_logits, relative_error, save_model

SIX_HEADS: Final[dict[str, int]] = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
LATENT: Final[dict[str, int]] = {**SIX_HEADS, "num_key_value_heads": 6}

FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "gemma2": SIX_HEADS,
    "gemma3_text": SIX_HEADS,
    "phi3": SIX_HEADS,
    "glm4": SIX_HEADS,
    "olmo2": SIX_HEADS,
    "gpt_neox": {"hidden_size": 48, "num_attention_heads": 6},
    "starcoder2": SIX_HEADS,
    "cohere": {**SIX_HEADS, "use_qk_norm": True},
    "cohere2": SIX_HEADS,
    "mixtral": SIX_HEADS,
    "qwen2_moe": SIX_HEADS,
    "qwen3_moe": SIX_HEADS,
    "olmoe": SIX_HEADS,
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
}

STOP: Final = 2


@pytest.mark.parametrize("family", FAMILIES)
def test_six_heads_over_one_to_four_ranks(family: str, tmp_path: Path) -> None:
    model = random_model(family, **FAMILIES[family])
    save_model(model, tmp_path)
    reference = reference_logits(model, IDS)
    for ranks in (1, 2, 3, 4):
        with lm.Engine(tmp_path, tensor_parallel=ranks, executor="inline") as engine:
            assert relative_error(engine.logits(IDS), reference) < 1e-5, ranks
            assert engine.report.amplification == 1.0


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss", "deepseek_v2", "qwen3_moe", "qwen3_next"])
def test_tokens_one_by_one_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = random_model(family)
    save_model(model, tmp_path)
    with lm.Engine(tmp_path, tensor_parallel=2, executor="inline") as engine:
        (answer,) = engine.generate([IDS], max_tokens=8, temperature=0.0)
    expected = greedy(model, IDS, 8)
    assert len(answer.token_ids) > 1
    assert answer.token_ids == expected[: expected.index(STOP) if STOP in expected else None]
