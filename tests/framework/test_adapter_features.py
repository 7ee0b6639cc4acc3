"""Every field of peft's LoraConfig against peft itself, live and merged, whole and divided."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from shutil import copytree
from typing import Any, Final, NamedTuple

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import loadmaster as lm
from family_census import random_model
from loadmaster_hookspecs.adapters import AdapterMode
from loadmaster_plugins.lora.fields import Fields
from peft_adapters import TOLERANCE, Made, adapt, check, engine, make_adapter, write_adapter_tensors
from tiny_models import IDS, make_model, reference_logits, relative_error, save_model

RANKS: Final = (1, 2, 3, 4)
EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
SMALL: Final = [3, 17, 20, 5, 49, 8, 8, 90, 41, 2, 7]
VOCABULARIES: Final = ("embed_tokens", "lm_head")
STACKS: Final = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


class Shape(NamedTuple):
    """A family, its sizes, and what it calls the linear layers of its blocks."""

    family: str
    sizes: Mapping[str, Any]
    q: str = "q_proj"
    k: str = "k_proj"
    v: str = "v_proj"
    inner: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")

    def features(self) -> dict[str, dict[str, Any]]:
        """Return settings of LoraConfig by what they are about."""
        everything = list(dict.fromkeys([self.q, self.k, self.v, "o_proj", *self.inner]))
        some = {"target_modules": [self.q, "o_proj"]}
        ranks = {"rank_pattern": {self.q: 2, r"layers\.0\..*o_proj": 7}, "alpha_pattern": {self.k: 20, "o_proj": 1}}
        patterned = {self.v: 9}
        found: dict[str, dict[str, Any]] = {
            "plain": {"r": 5, "lora_alpha": 3},
            "rslora": {"use_rslora": True},
            "patterns": ranks,
            "patterns and rslora": {"rank_pattern": patterned, "alpha_pattern": {self.v: 3}, "use_rslora": True},
            "regex": {"target_modules": rf".*layers\.0\..*({self.q}|{self.v})"},
            "all-linear": {"target_modules": "all-linear"},
            "full paths": {"target_modules": [f"model.layers.0.self_attn.{self.q}", "model.layers.1.self_attn.o_proj"]},
            "layers": {"layers_to_transform": [1]},
            "layers pattern": {"layers_to_transform": 0, "layers_pattern": "layers"},
            "exclude": {"exclude_modules": ["o_proj"]},
            "fan_in_fan_out": {"fan_in_fan_out": True},
            "dora": {"use_dora": True},
            "embedding": {"target_modules": ["embed_tokens", self.q]},
            "dora on embeddings": {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True},
            "head": {"target_modules": ["lm_head", "o_proj"]},
            "modules_to_save": some | {"modules_to_save": ["embed_tokens", "lm_head", "norm"]},
            "dropout and gaussian": {"lora_dropout": 0.5, "init_lora_weights": "gaussian"},
            "parameters of linear layers": {"target_modules": [self.v], "target_parameters": ["o_proj.weight"]},
        }
        if self.sizes.get("attention_bias"):
            found |= {
                "bias all": {"bias": "all"},
                "bias lora_only": some | {"bias": "lora_only"},
                "lora_bias": {"target_modules": [self.q, self.k, self.v, "o_proj"], "lora_bias": True},
                "bias and dora": {"bias": "all", "use_dora": True},
            }
        if "num_experts" in self.sizes:
            found |= {
                "experts": some | {"target_parameters": STACKS, "alpha_pattern": {"experts.down_proj": 9}},
                "experts, gate and up": {"target_modules": [], "target_parameters": STACKS[:1], "use_rslora": True},
                "experts, down": {"target_modules": [], "target_parameters": STACKS[1:], "rank_pattern": {STACKS[1]: 3}},
                "experts by the names of their layers": {"target_modules": [self.q, "gate_proj", "up_proj", "down_proj"]},
                "experts and router": {"target_modules": [], "target_parameters": ["mlp.gate.weight", *STACKS]},
            }
        return {name: {"target_modules": everything, **config} for name, config in found.items()}


SHAPES: Final = (
    Shape("llama", {"attention_bias": True, "mlp_bias": True}),
    Shape("qwen3", {"attention_bias": True}),
    Shape("phi3", {}, q="qkv_proj", k="qkv_proj", v="qkv_proj", inner=("gate_up_proj", "down_proj")),
    Shape("qwen3_moe", {"attention_bias": True, **EXPERTS}, inner=()),
)


def test_every_honoured_field_has_a_case() -> None:
    used = {field for shape in SHAPES for config in shape.features().values() for field in config}
    assert set(Fields.__struct_fields__) <= used


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: shape.family)
def features(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """A shape's model with an adapter for every feature."""
    shape: Shape = request.param
    folder = tmp_path_factory.mktemp(shape.family)
    model = save_model(make_model(shape.family, **shape.sizes), folder / "model")
    return {name: adapt(model, folder / name, **config) for name, config in shape.features().items()}


@pytest.mark.parametrize("ranks", RANKS)
def test_every_field(features: dict[str, Made], ranks: int) -> None:
    assert not _different(features, ranks)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.family)
def test_tied_vocabularies(shape: Shape, tmp_path: Path) -> None:
    """One of the two modules that share a weight is adapted, or one or both are replaced."""
    sizes = {**shape.sizes, "tie_word_embeddings": True, "num_hidden_layers": 1}
    model = save_model(make_model(shape.family, **sizes), tmp_path / "model")
    configs: dict[str, dict[str, Any]] = {name: {"target_modules": [name, shape.q]} for name in VOCABULARIES}
    for saved in (VOCABULARIES[:1], VOCABULARIES[1:], VOCABULARIES):
        configs[f"saved {' and '.join(saved)}"] = {"target_modules": [shape.q], "modules_to_save": list(saved)}
    made = {name: adapt(model, tmp_path / name, **config) for name, config in configs.items()}
    assert not [found for ranks in RANKS for found in _different(made, ranks)]


def _different(made: Mapping[str, Made], ranks: int) -> list[tuple[str, AdapterMode, int]]:
    """Return which adapters of a model give other logits than peft: live all in one engine, merged each in one of its own."""
    adapters = {name: each.adapter for name, each in made.items()}
    (model,) = {each.model for each in made.values()}
    found: list[tuple[str, AdapterMode, int]] = []
    with lm.Engine(model, tensor_parallel=ranks, adapters=adapters, executor="inline", dtype="float32") as live:
        found += [(name, "live", ranks) for name, each in made.items() if not _equal(live, name, each)]
    for name, each in made.items():
        with engine(model, each.adapter, ranks, "merged") as merged:
            found += [(name, "merged", ranks)] * (not _equal(merged, "it", each))
    return found


def _equal(loaded: lm.Engine, name: str, made: Made) -> bool:
    return relative_error(loaded.logits(list(IDS), adapter=name), made.logits) < TOLERANCE


@pytest.mark.parametrize("dora", [False, True])
def test_norms_from_zero(dora: bool, tmp_path: Path) -> None:
    check(make_adapter(tmp_path, "gemma", use_dora=dora), (1, 2, 4))


@pytest.mark.parametrize("dora", [False, True])
def test_scaled_embeddings(dora: bool, tmp_path: Path) -> None:
    sizes = {"query_pre_attn_scalar": 16}
    check(make_adapter(tmp_path, "gemma3_text", sizes, target_modules=["embed_tokens", "q_proj"], use_dora=dora), (1, 2))


@pytest.mark.parametrize("dora", [False, True])
def test_equal_ranks_with_padding(dora: bool, tmp_path: Path) -> None:
    made = make_adapter(tmp_path, sizes={"intermediate_size": 177, "num_attention_heads": 8}, use_dora=dora)
    check(made, (2, 4), equal_ranks=True)


def test_square_random_factors_are_not_transposed(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "head_dim": 2, "num_key_value_heads": 4}
    check(make_adapter(tmp_path, sizes=sizes, r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]), (1, 2))


@pytest.mark.parametrize(
    ("family", "stacks"),
    [
        ("gpt_oss", STACKS),  # [count, in, out], not divided
        ("aria_text", STACKS),  # the same, divided
        ("llama4_text", ["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"]),  # all experts at once
    ],
)
def test_experts_of_other_forms(family: str, stacks: list[str], tmp_path: Path) -> None:
    model = save_model(random_model(family), tmp_path / "model")
    check(adapt(model, tmp_path / "adapter", ids=SMALL, target_modules=[], target_parameters=stacks), (1, 2), ids=SMALL)


@pytest.mark.filterwarnings("ignore")  # peft and transformers warn of each other
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_experts_that_were_layers(family: str, tmp_path: Path) -> None:
    """Adapters of older transformers, with peft's own conversion as the reference."""
    sizes = EXPERTS if family == "qwen3_moe" else {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 96}
    model = save_model(make_model(family, **sizes), tmp_path / "model")
    layers = {name: value for name, value in load_file(model / "model.safetensors").items() if ".experts." in name}
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, weight in layers.items():
        path = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{path}.lora_A.weight"] = 0.3 * torch.randn(3, weight.shape[1], generator=generator)
        tensors[f"{path}.lora_B.weight"] = 0.3 * torch.randn(weight.shape[0], 3, generator=generator)
    targets = sorted({name.split(".")[-2] for name in layers})
    folder = tmp_path / "adapter"
    LoraConfig(r=3, lora_alpha=6, target_modules=targets, task_type="CAUSAL_LM").save_pretrained(str(folder))
    write_adapter_tensors(folder, tensors)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    made = Made(model, folder, reference_logits(PeftModel.from_pretrained(base, folder).eval(), list(IDS)))
    assert relative_error(made.logits, reference_logits(make_model(family, **sizes), list(IDS))) > 0.01
    check(made, RANKS)


def test_some_of_the_experts_that_were_layers(tmp_path: Path) -> None:
    """Ranks and scales of their own, one half of a stack, and experts without any, beside the weights changed by hand."""
    model = save_model(make_model("qwen3_moe", **EXPERTS), tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    tensors: dict[str, torch.Tensor] = {}
    changed: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        if re.search(r"layers\.1.*experts\.(1\.gate|1\.down|3\.up)_proj", name):
            path, rank = name.removesuffix(".weight"), 5 if "up_proj" in name else 2
            a = 0.3 * torch.randn(rank, weight.shape[1], generator=generator)
            b = 0.3 * torch.randn(weight.shape[0], rank, generator=generator)
            tensors |= {f"base_model.model.{path}.lora_A.weight": a, f"base_model.model.{path}.lora_B.weight": b}
            changed[name] = weight + 6 / rank * (b @ a)
    folder = tmp_path / "adapter"
    targets = r".*layers\.1.*experts\.(1\.gate|1\.down|3\.up)_proj"
    LoraConfig(r=2, lora_alpha=6, target_modules=targets, rank_pattern={"up_proj": 5}).save_pretrained(str(folder))
    write_adapter_tensors(folder, tensors)
    assert len(changed) == 3
    plain = copytree(model, tmp_path / "changed")
    save_file(weights | changed, plain / "model.safetensors")
    base = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager")
    check(Made(model, folder, reference_logits(base, list(IDS))), RANKS)
