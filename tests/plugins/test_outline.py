"""The sizes that decide a split, read from configurations of many shapes."""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster_hookspecs import PlanError
from loadmaster_plugins.transformers_models.outline import outline_of

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 90,
}


def test_inner_widths_of_blocks_and_experts_are_listed() -> None:
    outline = outline_of(
        {**CONFIG, "intermediate_size": 44, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}
    )
    assert outline.widths == {"intermediate_size": 44, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28}


def test_of_widths_per_layer_the_narrowest_counts() -> None:
    assert outline_of({**CONFIG, "intermediate_size": [64, 16, 32]}).widths == {"intermediate_size": 16}
    with pytest.raises(PlanError) as caught:
        outline_of({**CONFIG, "intermediate_size": [64, "16"]})
    assert caught.value.code == "LM-CONFIG-KEY"


def test_layers_are_counted_where_their_kinds_are_listed_instead() -> None:
    kinds = {key: value for key, value in CONFIG.items() if key != "num_hidden_layers"}
    assert outline_of({**kinds, "layers_block_type": ["mamba", "attention", "moe"]}).num_layers == 3
    with pytest.raises(PlanError):
        outline_of(kinds)
