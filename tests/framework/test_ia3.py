"""IA3 against peft itself, live and merged, whole and divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config

import loadmaster as lm
from peft_adapters import (
    ALL,
    TOLERANCE,
    Made,
    adapt,
    adapter_tensors,
    check,
    edit_adapter_config,
    make_adapter,
    write_adapter_tensors,
)
from quantised_models import Scheme, write_quantised
from tiny_models import IDS, relative_error

DOWN = ["down_proj"]

FEATURES: dict[str, dict[str, Any]] = {
    "down on its input": {"feedforward_modules": DOWN},
    "all on results": {"feedforward_modules": []},
    "all on inputs": {"feedforward_modules": ALL},
    "regex": {"target_modules": r".*(k|v|down)_proj", "feedforward_modules": r".*\.mlp\..*"},
    "all-linear": {"target_modules": "all-linear", "feedforward_modules": r".*\.down_proj"},
    "exclude": {"exclude_modules": ["o_proj"], "feedforward_modules": ["gate_proj", "up_proj"]},
    "fan_in_fan_out": {"fan_in_fan_out": True, "feedforward_modules": DOWN},
    "modules_to_save": {"modules_to_save": ["embed_tokens", "norm"], "feedforward_modules": DOWN},
    "head": {"target_modules": ["lm_head", "k_proj"], "feedforward_modules": []},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_features(feature: str, tmp_path: Path) -> None:
    check(make_adapter(tmp_path, kind=IA3Config, **FEATURES[feature]), (2,))


@pytest.mark.parametrize("feedforward", [[], DOWN])
def test_a_bias_is_scaled_with_the_result_once(feedforward: list[str], tmp_path: Path) -> None:
    """Of a summed layer the first rank alone has the bias, and every rank the factors."""
    sizes = {"attention_bias": True, "mlp_bias": True}
    check(make_adapter(tmp_path, sizes=sizes, kind=IA3Config, feedforward_modules=feedforward), (1, 2, 3))


@pytest.mark.parametrize(
    ("family", "sizes", "targets", "feedforward"),
    [
        ("llama", {}, ALL, DOWN),
        ("qwen3", {}, ALL, DOWN),
        ("phi3", {}, ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], ["down_proj", "qkv_proj"]),
        (
            "qwen3_moe",
            {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96},
            ["q_proj", "k_proj", "v_proj", "o_proj"],
            ["o_proj"],
        ),
    ],
)
def test_families(family: str, sizes: dict[str, Any], targets: list[str], feedforward: list[str], tmp_path: Path) -> None:
    made = make_adapter(tmp_path, family, sizes, kind=IA3Config, target_modules=targets, feedforward_modules=feedforward)
    check(made, (1, 2, 3, 4))


def test_equal_ranks_with_padding(tmp_path: Path) -> None:
    sizes = {"intermediate_size": 177, "num_attention_heads": 8}
    check(make_adapter(tmp_path, sizes=sizes, kind=IA3Config, feedforward_modules=DOWN), (4,), equal_ranks=True)


@pytest.mark.parametrize("targets", [["lm_head", "k_proj"], ["v_proj"]])
def test_one_of_two_tied_modules(targets: list[str], tmp_path: Path) -> None:
    sizes = {"tie_word_embeddings": True}
    check(make_adapter(tmp_path, sizes=sizes, kind=IA3Config, target_modules=targets, feedforward_modules=[]), (2,))


@pytest.mark.parametrize("ranks", [1, 2])
def test_beside_a_lora_by_turns(ranks: int, tmp_path: Path) -> None:
    ia3 = make_adapter(tmp_path, kind=IA3Config, feedforward_modules=DOWN)
    lora = adapt(ia3.model, tmp_path / "lora", use_dora=True)
    folders = {"ia3": ia3.adapter, "lora": lora.adapter}
    with lm.Engine(ia3.model, tensor_parallel=ranks, adapters=folders, dtype="float32", executor="inline") as loaded:
        plain = loaded.logits(list(IDS))
        for _ in range(2):
            assert relative_error(loaded.logits(list(IDS), adapter="ia3"), ia3.logits) < TOLERANCE
            assert relative_error(loaded.logits(list(IDS), adapter="lora"), lora.logits) < TOLERANCE
            assert (loaded.logits(list(IDS)) == plain).all()


@pytest.mark.parametrize("scheme", [Scheme(), Scheme(method="awq", version="gemm")])
def test_live_on_quantised_bases(scheme: Scheme, tmp_path: Path) -> None:
    plain = write_quantised(tmp_path / "packed", scheme, attention_bias=True, mlp_bias=True)
    made = adapt(plain, tmp_path / "adapter", kind=IA3Config, feedforward_modules=DOWN)._replace(model=tmp_path / "packed")
    check(made, (2,), ("live",), kernel="dequant")
    with pytest.raises(lm.PlanError, match="LM-ADAPTER-MERGE"):
        lm.plan(made.model, adapters={"it": made.adapter}, adapter_mode="merged")


@pytest.fixture
def made(tmp_path: Path) -> Made:
    sizes = {"num_hidden_layers": 1}
    return make_adapter(tmp_path, sizes=sizes, kind=IA3Config, target_modules=["k_proj", *DOWN], feedforward_modules=DOWN)


def claimed(made: Made) -> lm.Plan:
    return lm.plan(made.model, adapters={"it": made.adapter})


def test_an_open_list_of_feed_forward_modules_is_read_from_the_vectors(made: Made) -> None:
    said = claimed(made)
    assert said.data.adapters[0].summary == "IA3, 2/2 vectors, 1 on inputs"
    edit_adapter_config(made.adapter, feedforward_modules=None)
    assert claimed(made).data.adapters[0].parts == said.data.adapters[0].parts


def test_a_repaired_prefix_is_said(made: Made) -> None:
    tensors = adapter_tensors(made.adapter)
    write_adapter_tensors(made.adapter, {name.replace(".model.model.", ".model."): each for name, each in tensors.items()})
    assert any("2/2 vectors, prefix model. added" in finding.message for finding in claimed(made).data.findings)


@pytest.mark.parametrize(("field", "value"), [("layers_to_transform", [0]), ("bias", "all"), ("a_field_of_the_future", 7)])
def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: Any, made: Made) -> None:
    edit_adapter_config(made.adapter, **{field: value})
    with pytest.raises(lm.PlanError) as caught:
        claimed(made)
    assert caught.value.code == "LM-ADAPTER-FIELD"
    assert caught.value.report.why == f"{field} = {value!r}"


@pytest.mark.parametrize(
    ("config", "code", "named"),
    [
        ({"feedforward_modules": ["k_proj", "down_proj"]}, "LM-ADAPTER-SHAPE", "feedforward_modules names the module"),
        ({"feedforward_modules": []}, "LM-ADAPTER-SHAPE", "feedforward_modules does not name the module"),
        ({"target_modules": ["down_proj"]}, "LM-ADAPTER-TARGET", "self_attn.k_proj"),
        ({"target_modules": ["k_proj", "v_proj", "down_proj"]}, "LM-ADAPTER-MISSING", "self_attn.v_proj"),
        ({"feedforward_modules": "("}, "LM-ADAPTER-CONFIG", "feedforward_modules has '('"),
        ({"feedforward_modules": ["up_proj"]}, "LM-ADAPTER-CONFIG", "subset of `target_modules`"),
    ],
)
def test_tensors_that_contradict_the_configuration(config: dict[str, Any], code: str, named: str, made: Made) -> None:
    edit_adapter_config(made.adapter, **config)
    with pytest.raises(lm.LoadmasterError) as caught:
        claimed(made)
    assert caught.value.code == code
    assert named in caught.value.report.why


def test_an_embedding_cannot_be_scaled(made: Made) -> None:
    tensors = adapter_tensors(made.adapter)
    tensors["base_model.model.model.embed_tokens.ia3_l"] = torch.ones(64, 1)
    write_adapter_tensors(made.adapter, tensors)
    with pytest.raises(lm.PlanError) as caught:
        claimed(made)
    assert "a module of kind 'embedding': only linear layers can be changed" in caught.value.report.why
