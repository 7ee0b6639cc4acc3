"""Every feature of peft's LoRA against peft itself, live and merged, whole and divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peft_adapters import ALL, check, make_adapter

FEATURES: dict[str, dict[str, Any]] = {
    "all seven": {},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"q_proj": 2, r"layers\.1\..*down_proj": 7}, "alpha_pattern": {"k_proj": 20, "o_proj": 1}},
    "patterns and rslora": {"rank_pattern": {"v_proj": 9}, "alpha_pattern": {"v_proj": 3}, "use_rslora": True},
    "regex": {"target_modules": r".*layers\.0\..*(q|v)_proj"},
    "all-linear": {"target_modules": "all-linear"},
    "full paths": {"target_modules": ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"]},
    "layers": {"layers_to_transform": [1]},
    "layers pattern": {"layers_to_transform": 0, "layers_pattern": "layers"},
    "exclude": {"exclude_modules": ["down_proj"]},
    "fan_in_fan_out": {"fan_in_fan_out": True},
    "dora": {"use_dora": True},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "dora on embeddings": {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True},
    "head": {"target_modules": ["lm_head", "o_proj"]},
    "modules_to_save": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head", "norm"]},
    "dropout and gaussian": {"lora_dropout": 0.5, "init_lora_weights": "gaussian"},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_features(feature: str, tmp_path: Path) -> None:
    check(make_adapter(tmp_path, **FEATURES[feature]), (1, 2))


@pytest.mark.parametrize(
    ("bias", "more"), [("all", {}), ("lora_only", {}), ("none", {"lora_bias": True}), ("all", {"use_dora": True})]
)
def test_biases(bias: str, more: dict[str, Any], tmp_path: Path) -> None:
    made = make_adapter(tmp_path, sizes={"attention_bias": True, "mlp_bias": True}, bias=bias, **more)
    check(made, (1, 2))


@pytest.mark.parametrize(
    ("family", "targets"), [("qwen3", ALL), ("phi3", ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]), ("gemma", ALL)]
)
@pytest.mark.parametrize("dora", [False, True])
def test_families(family: str, targets: list[str], dora: bool, tmp_path: Path) -> None:
    sizes = {"head_dim": 16} if family != "phi3" else {}
    check(make_adapter(tmp_path, family, sizes, target_modules=targets, use_dora=dora), (1, 2, 4))


def test_attention_of_experts_models(tmp_path: Path) -> None:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    check(make_adapter(tmp_path, "qwen3_moe", sizes, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]), (1, 2))


@pytest.mark.parametrize("dora", [False, True])
def test_scaled_embeddings(dora: bool, tmp_path: Path) -> None:
    sizes = {"query_pre_attn_scalar": 16}
    check(make_adapter(tmp_path, "gemma3_text", sizes, target_modules=["embed_tokens", "q_proj"], use_dora=dora), (1, 2))


@pytest.mark.parametrize("targets", [["embed_tokens", "q_proj"], ["lm_head", "q_proj"]])
def test_one_of_two_tied_modules(targets: list[str], tmp_path: Path) -> None:
    check(make_adapter(tmp_path, sizes={"tie_word_embeddings": True}, target_modules=targets), (1, 2))


@pytest.mark.parametrize("dora", [False, True])
def test_equal_ranks_with_padding(dora: bool, tmp_path: Path) -> None:
    made = make_adapter(tmp_path, sizes={"intermediate_size": 177, "num_attention_heads": 8}, use_dora=dora)
    check(made, (2, 4), equal_ranks=True)


@pytest.mark.parametrize("saved", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
def test_replaced_vocabularies_of_tied_models(saved: list[str], tmp_path: Path) -> None:
    sizes = {"tie_word_embeddings": True}
    check(make_adapter(tmp_path, sizes=sizes, target_modules=["q_proj"], modules_to_save=saved), (1, 2))


def test_square_random_factors_are_not_transposed(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "head_dim": 2, "num_key_value_heads": 4}
    check(make_adapter(tmp_path, sizes=sizes, r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]), (1, 2))


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj"], "target_parameters": STACKS, "alpha_pattern": {"experts.down_proj": 9}},
        {"target_modules": [], "target_parameters": STACKS[:1], "use_rslora": True},
        {"target_modules": [], "target_parameters": STACKS[1:], "rank_pattern": {"layers.1.mlp.experts.down_proj": 3}},
        {"target_modules": ["k_proj"], "target_parameters": ["q_proj.weight", "mlp.gate.weight", *STACKS]},
    ],
)
def test_experts(config: dict[str, Any], tmp_path: Path) -> None:
    check(make_adapter(tmp_path, "qwen3_moe", EXPERTS, **config), (1, 2, 3, 4))
