"""A merged adapter is taken out again, and what is left are the bits of a model that never had it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadmaster as lm
from peft_adapters import engine, make_adapter
from tiny_models import IDS


@pytest.mark.parametrize(
    ("sizes", "config", "options"),
    [
        ({"attention_bias": True, "mlp_bias": True}, {"lora_bias": True}, {"read_mode": "node_once"}),
        ({"attention_bias": True}, {"use_dora": True, "bias": "all"}, {"equal_ranks": True}),
        ({"tie_word_embeddings": True}, {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": ["norm"]}, {}),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_bits_of_the_base_come_back(
    sizes: dict[str, Any], config: dict[str, Any], options: dict[str, Any], ranks: int, tmp_path: Path
) -> None:
    made = make_adapter(tmp_path, "llama", sizes, **config)
    with lm.Engine(made.model, tensor_parallel=ranks, executor="inline", dtype="float32", **options) as plain:
        expected = plain.logits(IDS)
    with engine(made.model, made.adapter, ranks, "merged", **options) as loaded:
        assert np.abs(loaded.logits(IDS) - expected).max() > 0.1
        loaded.unmerge()
        assert np.array_equal(loaded.logits(IDS), expected)
        with pytest.raises(lm.UsageError, match="no adapter is merged"):
            loaded.unmerge()
        with pytest.raises(lm.UsageError, match="no adapter is called"):
            loaded.logits(IDS, adapter="it")


def test_files_that_changed_are_noticed_before_anything_is_written(tmp_path: Path) -> None:
    made = make_adapter(tmp_path, target_modules=["q_proj"])
    weights = made.model / "model.safetensors"
    with engine(made.model, made.adapter, 1, "merged") as loaded:
        content = weights.read_bytes()
        weights.unlink()
        weights.write_bytes(content[:-4])
        with pytest.raises(lm.IntegrityError, match="LM-FILE-CHANGED"):
            loaded.unmerge()


def test_a_live_adapter_is_not_merged(tmp_path: Path) -> None:
    made = make_adapter(tmp_path, target_modules=["q_proj"])
    with engine(made.model, made.adapter) as loaded, pytest.raises(lm.UsageError, match="no adapter is merged"):
        loaded.unmerge()
