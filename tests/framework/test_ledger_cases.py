"""What a checkpoint holds against what the model needs: holes, leftovers, ties, shapes and types, each with its answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import loadmaster as lm
from tiny_models import IDS, make_model, reference_logits, relative_error, save_model

Tensors = dict[str, torch.Tensor]


def edit(folder: Path, tensors: Tensors | None = None, **config: Any) -> Path:
    """Change the configuration, and replace the tensors, of a saved model. A value of None removes a key."""
    path = folder / "config.json"
    merged = json.loads(path.read_text()) | config
    path.write_text(json.dumps({key: value for key, value in merged.items() if value is not ...}))
    if tensors is not None:
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def saved(folder: Path, **sizes: Any) -> tuple[torch.nn.Module, Tensors]:
    model = make_model("llama", **sizes)
    save_model(model, folder)
    return model, load_file(folder / "model.safetensors")


def refusal(folder: Path, **options: Any) -> lm.LoadmasterError:
    with pytest.raises(lm.IntegrityError) as caught:
        lm.plan(folder, **options)
    return caught.value


def test_a_missing_layer_is_counted_and_named(tmp_path: Path) -> None:
    saved(tmp_path)
    error = refusal(edit(tmp_path, num_hidden_layers=3))
    assert error.code == "LM-LEDGER-MISSING"
    assert "9 of layer 2 absent; config says 3 layers, file has 2" in str(error)
    assert "num_hidden_layers" in error.hints[0]


def test_one_missing_tensor_is_named(tmp_path: Path) -> None:
    _, tensors = saved(tmp_path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    error = refusal(edit(tmp_path, tensors))
    assert error.code == "LM-LEDGER-MISSING"
    assert error.report.where["parameters"] == "model.layers.1.mlp.up_proj.weight"


def test_known_leftovers_are_quiet_and_unknown_ones_are_named(tmp_path: Path) -> None:
    _, tensors = saved(tmp_path)
    tensors |= {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in range(2)}
    tensors["model.foo.weight"] = torch.ones(3)
    plan = lm.plan(edit(tmp_path, tensors))
    warnings = [finding for finding in plan.findings if finding.level == "warning"]
    assert [finding.code for finding in warnings] == ["LM-LEDGER-UNEXPECTED"]
    assert "model.foo.weight" in warnings[0].message
    assert {item.name for item in plan.ledger.ignored if item.notable} == {"model.foo.weight"}
    assert len(plan.ledger.ignored) == 3
    assert refusal(tmp_path, strict=True).code == "LM-LEDGER-UNEXPECTED"


def test_tied_and_absent_head_shares_storage(tmp_path: Path) -> None:
    model, tensors = saved(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in tensors
    for ranks in (1, 3):
        with lm.Engine(tmp_path, tensor_parallel=ranks, executor="inline") as engine:
            assert engine.plan.ledger.aliased == {"lm_head.weight": "model.embed_tokens.weight"}
            assert relative_error(engine.logits(IDS), reference_logits(model, IDS)) < 1e-5
    module = lm.load_model(tmp_path)
    assert module.get_parameter("lm_head.weight") is module.get_parameter("model.embed_tokens.weight")


def test_tied_and_identical_head_is_held_once(tmp_path: Path) -> None:
    model, tensors = saved(tmp_path, tie_word_embeddings=True)
    once = lm.plan(tmp_path).ranks[0].bytes
    edit(tmp_path, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    with lm.Engine(tmp_path, tensor_parallel=2, executor="inline") as engine:
        assert sum(rank.counters["compared"] for rank in engine.report.ranks) == 250 * 64 * 4
        assert relative_error(engine.logits(IDS), reference_logits(model, IDS)) < 1e-5
    assert lm.plan(tmp_path).ranks[0].bytes == once


def test_tied_but_different_head_is_used_with_a_warning(tmp_path: Path) -> None:
    model, _ = saved(tmp_path, tie_word_embeddings=False)
    edit(tmp_path, tie_word_embeddings=True)
    with lm.Engine(tmp_path) as engine:
        assert relative_error(engine.logits(IDS), reference_logits(model, IDS)) < 1e-5
        assert "LM-TIE-DIFFERS" in {finding.code for finding in engine.plan.findings}
        assert engine.plan.ledger.aliased == {}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_difference_that_samples_miss_is_found_by_the_load(tmp_path: Path, ranks: int) -> None:
    model, tensors = saved(tmp_path, tie_word_embeddings=True, vocab_size=4000, hidden_size=64)
    head = tensors["model.embed_tokens.weight"].clone()
    head.view(-1)[3000] += 1.0
    edit(tmp_path, tensors | {"lm_head.weight": head})
    assert lm.plan(tmp_path).ledger.aliased != {}
    untied = make_model("llama", vocab_size=4000, tie_word_embeddings=False)
    untied.load_state_dict(model.state_dict() | {"lm_head.weight": head})
    with lm.Engine(tmp_path, tensor_parallel=ranks, executor="inline") as engine:
        assert engine.plan.ledger.aliased == {}
        assert relative_error(engine.logits(IDS), reference_logits(untied, IDS)) < 1e-5
    np.testing.assert_array_equal(lm.load_model(tmp_path).get_parameter("lm_head.weight").numpy(), head.numpy())


def test_untied_and_absent_head_is_an_error(tmp_path: Path) -> None:
    saved(tmp_path, tie_word_embeddings=True)
    error = refusal(edit(tmp_path, tie_word_embeddings=False))
    assert error.report.where["parameters"] == "lm_head.weight"


def test_the_element_type_comes_from_the_tensors(tmp_path: Path) -> None:
    model = make_model("llama").to(torch.bfloat16)
    save_model(model, tmp_path)
    plan = lm.plan(edit(tmp_path, dtype=..., torch_dtype=...))
    assert plan.data.dtype == "BF16"
    (finding,) = plan.findings
    assert finding.message == "dtype BF16 comes from the tensors (100 % of their bytes)"


def test_a_null_type_beside_a_valid_one_is_no_contradiction(tmp_path: Path) -> None:
    save_model(make_model("llama").to(torch.bfloat16), tmp_path)
    plan = lm.plan(edit(tmp_path, torch_dtype=None, dtype="bfloat16"))
    assert plan.data.dtype == "BF16"
    assert [finding.level for finding in plan.findings] == ["info"]


def test_contradicting_types_are_a_warning_and_the_tensors_decide(tmp_path: Path) -> None:
    save_model(make_model("llama").to(torch.bfloat16), tmp_path)
    plan = lm.plan(edit(tmp_path, torch_dtype="float16", dtype="float32"))
    assert plan.data.dtype == "BF16"
    assert [finding.code for finding in plan.findings] == ["LM-DTYPE-FROM-TENSORS", "LM-DTYPE-CONTRADICTION"]


def test_a_narrowing_cast_counts_what_no_longer_fits(tmp_path: Path) -> None:
    _, tensors = saved(tmp_path)
    tensors["model.norm.weight"][:3] = 1e5
    tensors["model.layers.0.mlp.down_proj.weight"][0, 170:173] = 7e4
    edit(tmp_path, tensors)
    with lm.Engine(tmp_path, tensor_parallel=2, executor="inline", dtype="float16") as engine:
        assert {binding.dtype for rank in engine.plan.ranks for binding in rank.bindings} == {"F16"}
        assert sum(rank.counters["overflow"] for rank in engine.report.ranks) == 3 + 3 + 3
        assert "9 values were too large for F16 and became infinite, counted over all ranks" in engine.notices


def test_another_shape_is_named_with_both(tmp_path: Path) -> None:
    _, tensors = saved(tmp_path)
    tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(31, 64)
    error = refusal(edit(tmp_path, tensors))
    assert error.code == "LM-TENSOR-SHAPE"
    assert "the model needs [32, 64], the file has [31, 64]" in str(error)


def test_a_type_that_cannot_be_cast_is_refused(tmp_path: Path) -> None:
    _, tensors = saved(tmp_path)
    tensors["model.norm.weight"] = torch.zeros(64, dtype=torch.int32)
    assert refusal(edit(tmp_path, tensors)).code == "LM-TENSOR-DTYPE"


def test_names_without_the_base_prefix_are_understood(tmp_path: Path) -> None:
    model, tensors = saved(tmp_path, tie_word_embeddings=True)
    edit(tmp_path, {name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    with lm.Engine(tmp_path) as engine:
        assert relative_error(engine.logits(IDS), reference_logits(model, IDS)) < 1e-5


def test_quantised_weights_are_refused_by_name(tmp_path: Path) -> None:
    saved(tmp_path)
    edit(tmp_path, quantization_config={"quant_method": "nf5"})
    with pytest.raises(lm.PlanError, match="nf5") as caught:
        lm.plan(tmp_path)
    assert caught.value.code == "LM-QUANT-UNCLAIMED"


def test_a_configuration_with_more_layers_than_tensors_is_refused_before_they_are_made(tmp_path: Path) -> None:
    saved(tmp_path)
    error = refusal(edit(tmp_path, num_hidden_layers=10**9))
    assert error.code == "LM-LEDGER-MISSING"
    assert "config says 1000000000 layers, the files have 21 tensors" in str(error)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "nonsense"},
        {"rms_norm_eps": "small"},
        {"hidden_size": 63},
        {"rope_parameters": {"rope_type": "nonsense", "rope_theta": 1.0}},
    ],
)
def test_values_that_the_library_rejects_are_the_configurations_fault(tmp_path: Path, change: dict[str, Any]) -> None:
    saved(tmp_path)
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(edit(tmp_path, **change))
    assert caught.value.code == "LM-CONFIG-REJECTED"
    assert caught.value.report.where["file"] == "config.json"


def test_a_device_that_is_not_there_is_named_before_anything_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(lm.UsageError) as caught:
        lm.Engine(tmp_path, device="cuda")
    assert caught.value.code == "LM-USAGE-DEVICE"
    assert "sees 0 CUDA devices" in str(caught.value)


def test_a_plan_that_needs_a_transform_nobody_provides_is_refused(tmp_path: Path) -> None:
    save_model(make_model("llama"), tmp_path)
    without = lm.PluginSelection(blocked=("transforms",))
    assert lm.plan(tmp_path, selection=without).ranks
    with pytest.raises(lm.PluginError, match="cast"):
        lm.plan(tmp_path, dtype="bfloat16", selection=without)


def test_an_error_while_planning_names_no_rank(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(lm.IntegrityError) as caught:
        lm.Engine(edit(tmp_path, num_hidden_layers=3))
    assert caught.value.report.where["stage"] == "plan"
    assert "rank" not in caught.value.report.where
