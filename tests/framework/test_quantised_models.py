"""Quantised matrices through the whole of loadmaster, with the tutorial's format: equal to the plain model they stand for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import loadmaster as lm
from loadmaster_engine.plan.preflight import group_aligned
from nibble_files import quantise_folder
from tiny_models import IDS, make_model, reference_logits, relative_error, save_model

sys.path.insert(0, str(Path(__file__).parents[2] / "contrib" / "loadmaster-nibble" / "src"))

TOLERANCE = 1e-5
SIZES: dict[str, Any] = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 224}


def engine(folder: Path, ranks: int = 1, **options: Any) -> lm.Engine:
    return lm.Engine(
        folder, tensor_parallel=ranks, executor="inline", dtype="float32", plugins=["loadmaster_nibble"], **options
    )


def projections(name: str) -> bool:
    return name.endswith("_proj.weight")


def quantised(model: torch.nn.Module, folder: Path, chosen: Callable[[str], bool] = projections) -> torch.nn.Module:
    """Write `model` with packed matrices and make its own weights those that the file stands for."""
    save_model(model, folder)
    plain = quantise_folder(folder, chosen)
    model.load_state_dict(plain, strict=False)
    return model


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_dense_model_at_any_size(ranks: int, tmp_path: Path) -> None:
    model = quantised(make_model("llama", **SIZES), tmp_path)
    with engine(tmp_path, ranks, kernel="dequant") as loaded:
        assert relative_error(loaded.logits(IDS), reference_logits(model, IDS)) < TOLERANCE
        assert loaded.report.amplification == 1.0
        assert {part.quantizer for rank in loaded.plan.ranks for part in rank.packed} == {"nibble"}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ],
)
def test_experts_that_the_model_keeps_in_one_parameter(family: str, sizes: dict[str, Any], ranks: int, tmp_path: Path) -> None:
    model = make_model(family, **{**SIZES, **sizes})
    save_model(model, tmp_path)
    plain = quantise_folder(tmp_path, lambda name: ".experts." in name)
    assert sum(".experts." in name for name in plain) == 2 * 4 * 3
    save_model(model, tmp_path / "plain")
    save_file(plain, tmp_path / "plain" / "model.safetensors", {"format": "pt"})
    reference = lm.load_model(tmp_path / "plain", dtype="float32")
    with engine(tmp_path, ranks) as loaded:
        assert relative_error(loaded.logits(IDS), reference_logits(reference, IDS)) < TOLERANCE
        assert loaded.report.amplification == 1.0
        assert {part.count for part in loaded.plan.ranks[0].packed} == {4}


@pytest.mark.parametrize("ranks", [1, 2])
def test_matrices_that_a_family_stores_fused_are_cut_in_both_halves(ranks: int, tmp_path: Path) -> None:
    model = quantised(make_model("phi3", **SIZES), tmp_path)
    with engine(tmp_path, ranks) as loaded:
        assert relative_error(loaded.logits(IDS), reference_logits(model, IDS)) < TOLERANCE


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_an_output_head_may_be_quantised_where_the_configuration_ties_it(ranks: int, tmp_path: Path) -> None:
    model = make_model("llama", **SIZES)
    model = quantised(model, tmp_path, lambda name: name == "lm_head.weight")
    edit_config(tmp_path, tie_word_embeddings=True)
    with engine(tmp_path, ranks) as loaded:
        assert relative_error(loaded.logits(IDS), reference_logits(model, IDS)) < TOLERANCE
        assert loaded.plan.ledger.aliased == {}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_bias_that_only_the_file_has_is_added_once(ranks: int, tmp_path: Path) -> None:
    model = make_model("llama", **SIZES, attention_bias=True, mlp_bias=True)
    save_model(model, tmp_path)
    plain = quantise_folder(tmp_path, projections, bias=0.25)
    for name, tensor in plain.items():
        if name.endswith("_proj.bias"):
            tensor.fill_(0.25)
    model.load_state_dict(plain)
    edit_config(tmp_path, attention_bias=False, mlp_bias=False)
    with engine(tmp_path, ranks) as loaded:
        assert relative_error(loaded.logits(IDS), reference_logits(model, IDS)) < TOLERANCE


@pytest.mark.parametrize("read_mode", ["auto", "mapped", "direct", "gathered", "overread"])
def test_every_read_mode(read_mode: Any, tmp_path: Path) -> None:
    model = quantised(make_model("llama", **SIZES), tmp_path)
    with engine(tmp_path, 2, read_mode=read_mode) as loaded:
        assert relative_error(loaded.logits(IDS), reference_logits(model, IDS)) < TOLERANCE


def test_the_plan_says_what_quantised_weights_take(tmp_path: Path) -> None:
    quantised(make_model("llama", **SIZES), tmp_path)
    with engine(tmp_path, 2, kernel="dequant") as loaded:
        roles = loaded.plan.ledger.roles
        weights = 2 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 224)
        assert sum(role["quantised"] for role in roles) == weights // 2
        assert sum(role["scales"] for role in roles) == weights // 32 * 2


def remove(folder: Path, *suffixes: str) -> None:
    state = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in state.items() if not name.endswith(suffixes)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def edit_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_absent_steps_are_named(tmp_path: Path) -> None:
    quantised(make_model("llama", **SIZES), tmp_path)
    remove(tmp_path, "1.mlp.up_proj.steps")
    with pytest.raises(lm.IntegrityError) as caught, engine(tmp_path):
        pass
    assert caught.value.code == "LM-NIBBLE-STEPS"
    assert caught.value.report.where["tensor"] == "model.layers.1.mlp.up_proj.steps"


def test_an_absent_matrix_is_named(tmp_path: Path) -> None:
    quantised(make_model("llama", **SIZES), tmp_path)
    remove(tmp_path, "1.mlp.up_proj.steps", "1.mlp.up_proj.nibbles")
    with pytest.raises(lm.IntegrityError) as caught, engine(tmp_path):
        pass
    assert caught.value.code == "LM-LEDGER-MISSING"
    assert caught.value.report.where["parameters"] == "model.layers.1.mlp.up_proj.weight"


def test_a_matrix_that_is_also_stored_plain_is_refused(tmp_path: Path) -> None:
    model = quantised(make_model("llama", **SIZES), tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    state = load_file(tmp_path / "model.safetensors") | {name: model.state_dict()[name]}
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(lm.IntegrityError) as caught, engine(tmp_path):
        pass
    assert (caught.value.code, caught.value.report.where["tensor"]) == ("LM-QUANT-BOTH", name)


def test_a_quantised_embedding_is_refused_by_name(tmp_path: Path) -> None:
    quantised(make_model("llama", **SIZES), tmp_path, lambda name: name == "model.embed_tokens.weight")
    with pytest.raises(lm.PlanError) as caught, engine(tmp_path):
        pass
    assert caught.value.code == "LM-QUANT-PLACE"


def test_without_the_plugin_nothing_is_guessed(tmp_path: Path) -> None:
    quantised(make_model("llama", **SIZES), tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "nibble"})
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(tmp_path)
    assert caught.value.code == "LM-QUANT-UNCLAIMED"


@pytest.mark.parametrize(
    ("width", "works"),
    [(13696, [1]), (27648, [1, 2, 4, 8]), (29568, [1]), (27392, [1, 2]), (11008, [1, 2]), (18944, [1, 2, 4]), (896, [1])],
)
def test_equal_ranks_are_refused_with_the_sizes_that_respect_groups(width: int, works: list[int]) -> None:
    assert [parts for parts in group_aligned(width, 128) if parts in (1, 2, 4, 8)] == works


def test_the_refusal_of_equal_ranks_needs_no_weights(tmp_path: Path) -> None:
    save_model(make_model("llama", **SIZES), tmp_path)
    edit_config(tmp_path, quantization_config={"quant_method": "nibble"}, intermediate_size=896 + 32)
    with pytest.raises(lm.PlanError) as caught, engine(tmp_path, 2, equal_ranks=True):
        pass
    assert caught.value.code == "LM-PLAN-GROUPS"
    assert "928 columns in groups of 32" in caught.value.report.summary
    assert "equal sizes that work: 1, 29" in caught.value.report.hints[0]


@pytest.mark.parametrize("ranks", [2, 3])
def test_codes_and_scales_are_read_once_for_all_ranks(ranks: int, tmp_path: Path) -> None:
    quantised(make_model("llama", **SIZES), tmp_path)
    with engine(tmp_path, ranks, kernel="dequant", read_mode="direct") as plain:
        wanted = plain.logits(IDS)
    with engine(tmp_path, ranks, kernel="dequant", read_mode="node_once") as once:
        assert any(op.via == "node_once" for op in once.plan.ranks[0].reads)
        assert once.logits(IDS).tobytes() == wanted.tobytes()
        assert sum(rank.bytes_by_call for rank in once.report.ranks) == once.report.bytes_unique
