"""GPTQ and AWQ through the whole of loadmaster: real files as their producers decode them, random ones as plain models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

import loadmaster as lm
from quantised_models import Scheme, edit_config, edit_tensors, write_quantised
from tiny_models import IDS, reference_logits, relative_error

DATA = Path(__file__).parents[1] / "data"
TOLERANCE = 1e-5
PRODUCERS = {
    "gptq-4b-g64-sym": 1e-6,
    "gptq-8b-g64-sym": 1e-6,
    "gptq-4b-g64-asym-act": 1e-6,
    "gptqv2-4b-g64-asym": 2e-3,  # its producer decodes in bfloat16
    "awq-4b-g64": 1e-6,
}


def engine(folder: Path, ranks: int = 1, **options: Any) -> lm.Engine:
    return lm.Engine(
        folder, tensor_parallel=ranks, **{"executor": "inline", "dtype": "float32", "kernel": "dequant", **options}
    )


def plain_logits(folder: Path) -> npt.NDArray[np.float32]:
    return reference_logits(lm.load_model(folder, dtype="float32"), IDS)


@pytest.mark.parametrize("name", PRODUCERS)
def test_real_files_give_their_producers_logits_at_any_size(name: str) -> None:
    expected = load_file(DATA / name / "expected" / "logits.safetensors")
    ids, reference = expected["input_ids"][0].tolist(), expected["logits"][0]
    alone: npt.NDArray[np.float32] | None = None
    for ranks in (1, 2, 3, 4):
        with engine(DATA / name, ranks) as loaded:
            logits = loaded.logits(ids)
            assert loaded.report.amplification == 1.0
        alone = logits if alone is None else alone
        assert relative_error(logits, reference) < PRODUCERS[name], ranks
        assert relative_error(logits, alone) < TOLERANCE, ranks
        assert not [finding for finding in loaded.plan.findings if "GPTQ" in finding.code or "AWQ" in finding.code]


SCHEMES = st.builds(
    Scheme,
    method=st.just("gptq"),
    bits=st.sampled_from([2, 3, 4, 8]),
    group=st.sampled_from([16, 24, 32, 64, 128, -1]),
    order=st.booleans(),
    version=st.sampled_from(["v1", "v2", "plain"]),
) | st.sampled_from([Scheme("awq", group=group, version="gemm") for group in (16, 32, 64, 128, -1)])


@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scheme=SCHEMES, heads=st.sampled_from([(4, 2), (6, 3), (4, 4), (3, 1)]), wide=st.integers(3, 9), ranks=st.integers(1, 4))
def test_random_schemes_shapes_and_splits(
    scheme: Scheme, heads: tuple[int, int], wide: int, ranks: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("model")
    sizes: dict[str, Any] = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "num_hidden_layers": 1}
    plain = write_quantised(folder, scheme, intermediate_size=32 * wide, head_dim=32, hidden_size=96, **sizes)
    ranks = min(ranks, heads[0])
    with engine(folder, ranks) as loaded:
        assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE
        assert loaded.report.amplification == 1.0


EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
AWQ = Scheme(method="awq", version="gemm")


@pytest.mark.parametrize(
    ("family", "sizes", "scheme"),
    [
        *(("qwen3_moe", EXPERTS, scheme) for scheme in (Scheme(), Scheme(order=True), Scheme(bits=3), AWQ)),
        *(("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, scheme) for scheme in (Scheme(bits=8), AWQ)),
        *(("phi3", {}, scheme) for scheme in (Scheme(order=True), AWQ)),
        ("qwen2", {}, Scheme(bits=2)),
        ("gemma2", {"query_pre_attn_scalar": 32}, Scheme(bits=3)),
    ],
)
def test_families(family: str, sizes: dict[str, Any], scheme: Scheme, tmp_path: Path) -> None:
    plain = write_quantised(tmp_path, scheme, family, **sizes)
    reference = plain_logits(plain)
    for ranks in (1, 2):
        with engine(tmp_path, ranks) as loaded:
            assert relative_error(loaded.logits(IDS), reference) < TOLERANCE, ranks


@pytest.mark.parametrize("version", ["gemv", "gemv_fast"])
def test_the_other_layouts_of_awq(version: str, tmp_path: Path) -> None:
    plain = write_quantised(tmp_path, Scheme(method="awq", version=version), intermediate_size=256)
    for ranks in (1, 2):
        with engine(tmp_path, ranks) as loaded:
            assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE, ranks


def test_heads_that_are_no_multiple_of_a_pack_word(tmp_path: Path) -> None:
    """A 3-bit word holds 32 columns, a head 16: rank borders go through words, which both sides then hold."""
    plain = write_quantised(tmp_path, Scheme(bits=3), hidden_size=64, head_dim=16, intermediate_size=96)
    for ranks in (2, 4):
        with engine(tmp_path, ranks) as loaded:
            assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE
            assert sum(rank.bytes_planned - rank.bytes_charged for rank in loaded.plan.ranks) > 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_biases_that_only_the_file_has(ranks: int, tmp_path: Path) -> None:
    plain = write_quantised(tmp_path, Scheme(), bias=0.25, attention_bias=True, mlp_bias=True)
    edit_config(tmp_path, attention_bias=False, mlp_bias=False)
    edit_tensors(plain, lambda held: {k: v.fill_(0.25) if k.endswith("_proj.bias") else v for k, v in held.items()})
    with engine(tmp_path, ranks) as loaded:
        assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE


def test_expert_biases_of_zeros_are_left_out_and_others_refused(tmp_path: Path) -> None:
    plain = write_quantised(tmp_path, Scheme(), "qwen3_moe", bias=0.0, chosen=lambda name: ".experts." in name, **EXPERTS)
    with engine(tmp_path) as loaded:
        assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE
        assert sum(item.reason == "a bias of zeros" for item in loaded.plan.ledger.ignored) == 2 * 4 * 3
    edit_tensors(tmp_path, lambda held: {k: v + 1 if k.endswith("3.up_proj.bias") else v for k, v in held.items()})
    with pytest.raises(lm.PlanError, match="LM-QUANT-BIAS"):
        lm.plan(tmp_path)


def test_a_plain_head_beside_quantised_layers_is_used_although_the_configuration_ties_it(tmp_path: Path) -> None:
    plain = write_quantised(tmp_path, Scheme())
    edit_config(tmp_path, tie_word_embeddings=True)
    with engine(tmp_path, 2) as loaded:
        assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE
        assert loaded.plan.ledger.aliased == {}


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_quantised_head(ranks: int, tmp_path: Path) -> None:
    chosen = lambda name: name.endswith(("_proj.weight", "lm_head.weight"))  # noqa: E731
    plain = write_quantised(tmp_path, Scheme(bits=8), chosen=chosen, vocab_size=256)
    with engine(tmp_path, ranks) as loaded:
        assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE


def test_the_type_that_computes_is_that_of_the_plain_tensors(tmp_path: Path) -> None:
    write_quantised(tmp_path, AWQ)
    edit_tensors(
        tmp_path,
        lambda held: {k: v.bfloat16() if v.dtype.is_floating_point and "scales" not in k else v for k, v in held.items()},
    )
    plan = lm.plan(tmp_path)
    assert plan.data.dtype == "BF16"
    assert {b.dtype for b in plan.ranks[0].bindings if b.parameter.endswith(".scales")} == {"F16"}


def test_some_matrices_may_be_plain_in_layers_but_not_among_experts(tmp_path: Path) -> None:
    plain = write_quantised(tmp_path / "dense", Scheme(), chosen=lambda name: "mlp" in name)
    with engine(tmp_path / "dense", 2) as loaded:
        assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE
    write_quantised(tmp_path / "moe", Scheme(), "qwen3_moe", chosen=lambda name: "experts.1." in name, **EXPERTS)
    with pytest.raises(lm.PlanError, match="LM-QUANT-MIXED"):
        lm.plan(tmp_path / "moe")


@pytest.mark.parametrize(
    ("lost", "code"),
    [("scales", "LM-GPTQ-MISSING"), ("qzeros", "LM-GPTQ-MISSING"), ("qweight", "LM-GPTQ-STRAY")],
)
def test_an_incomplete_matrix_is_refused_by_name(lost: str, code: str, tmp_path: Path) -> None:
    write_quantised(tmp_path, Scheme())
    name = f"model.layers.1.mlp.up_proj.{lost}"
    edit_tensors(tmp_path, lambda held: {k: v for k, v in held.items() if k != name})
    with pytest.raises(lm.IntegrityError) as caught:
        lm.plan(tmp_path)
    assert caught.value.code == code
    assert caught.value.report.where["tensor"] == name.replace("qweight", "scales")


def test_equal_ranks_are_refused_from_the_configuration_alone(tmp_path: Path) -> None:
    write_quantised(tmp_path, Scheme(group=128), intermediate_size=896)
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(tmp_path, tensor_parallel=2, equal_ranks=True)
    assert caught.value.code == "LM-PLAN-GROUPS"
    assert "equal sizes that work: 1, 7" in caught.value.report.hints[0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_an_expert_that_kept_its_order_among_others_that_did_not(ranks: int, tmp_path: Path) -> None:
    """GPTQ leaves the columns of an expert in order that saw no text, whatever `desc_act` says."""
    scheme = Scheme(order=True)
    plain = write_quantised(tmp_path, scheme, "qwen3_moe", num_hidden_layers=1, **EXPERTS)
    prefix = "model.layers.0.mlp.experts.1.up_proj"
    tensors, weight = Scheme(order=False).matrix(77, 96, 128)
    stored = {f"{prefix}.{suffix}": tensor.contiguous() for suffix, tensor in tensors.items()}
    edit_tensors(tmp_path, lambda held: held | stored)
    edit_tensors(plain, lambda held: held | {f"{prefix}.weight": weight})
    with engine(tmp_path, ranks) as loaded:
        assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE
        assert f"{prefix}.g_idx" not in [ignored.name for ignored in loaded.plan.ledger.ignored]


def test_experts_that_differ_in_type_are_refused_with_the_difference(tmp_path: Path) -> None:
    write_quantised(tmp_path, Scheme(), "qwen3_moe", num_hidden_layers=1, **EXPERTS)
    name = "model.layers.0.mlp.experts.1.up_proj.scales"
    edit_tensors(tmp_path, lambda held: held | {name: held[name].float()})
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(tmp_path)
    assert caught.value.code == "LM-QUANT-MIXED"
    assert "decoded as F16" in caught.value.report.why
    assert "decoded as F32" in caught.value.report.why


@pytest.mark.parametrize("order", [False, True])
def test_a_quantised_norm_is_refused_by_name(order: bool, tmp_path: Path) -> None:
    write_quantised(tmp_path, Scheme(), num_hidden_layers=1)
    tensors, _ = Scheme(order=order).matrix(5, 128, 128)
    stored = {f"model.norm.{suffix}": tensor.contiguous() for suffix, tensor in tensors.items()}
    edit_tensors(tmp_path, lambda held: {name: held[name] for name in held if name != "model.norm.weight"} | stored)
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(tmp_path)
    assert (caught.value.code, caught.value.report.where["tensor"]) == ("LM-QUANT-PLACE", "model.norm.*")


@pytest.mark.parametrize("label", ["gptq", "bitsandbytes"])
def test_a_label_of_another_method_is_remarked_once(label: str, tmp_path: Path) -> None:
    plain = write_quantised(tmp_path, Scheme("awq", version="gemm"))
    edit_config(tmp_path, quantization_config={"quant_method": label, "bits": 4, "group_size": 32})
    with engine(tmp_path) as loaded:
        assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE
        (remark,) = [finding for finding in loaded.plan.findings if finding.code == "LM-QUANT-LABEL"]
    assert remark.message == f"matrices are stored as awq stores them, the configuration says {label}: read as stored"


def test_a_label_on_plain_weights_is_refused_as_what_it_is(tmp_path: Path) -> None:
    plain = write_quantised(tmp_path, Scheme(), num_hidden_layers=1)
    edit_config(plain, quantization_config=Scheme().settings)
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(plain)
    assert caught.value.code == "LM-QUANT-UNCLAIMED"
    assert caught.value.report.summary == "the configuration says that weights are quantised (gptq), and none is"


def test_an_order_that_says_nothing_passes_in_strict_mode(tmp_path: Path) -> None:
    plain = write_quantised(tmp_path, Scheme(), num_hidden_layers=1)
    with engine(tmp_path, strict=True) as loaded:
        assert relative_error(loaded.logits(IDS), plain_logits(plain)) < TOLERANCE
        assert sum(ignored.name.endswith(".g_idx") for ignored in loaded.plan.ledger.ignored) == 7


def test_an_existing_module_cannot_take_quantised_matrices(tmp_path: Path) -> None:
    plain = write_quantised(tmp_path, Scheme(), num_hidden_layers=1)
    module = lm.load_model(plain)
    with pytest.raises(lm.UsageError) as caught:
        lm.load_into(module, tmp_path)
    assert caught.value.code == "LM-USAGE-QUANTISED"


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_plan_bounds_what_repacking_takes(ranks: int, tmp_path: Path) -> None:
    """Four matrices at a time, as large as the largest: one of the feed-forward block, 256 x 128, or half with two ranks."""
    write_quantised(tmp_path, Scheme(), num_hidden_layers=1, intermediate_size=256)
    tiles = 16 << 20
    weights = 256 * 128 // ranks
    repacked = weights // 2 + weights // 32 * 2 + weights // 32 // 2
    for kernel, scratch in (("torch-int4", tiles + 4 * repacked), ("dequant", 0)):
        with engine(tmp_path, ranks, kernel=kernel) as loaded:
            assert [rank.scratch for rank in loaded.plan.ranks] == [scratch] * ranks, kernel


def test_what_repacking_took_is_returned_once_per_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[None] = []
    monkeypatch.setattr("loadmaster_engine.load.stages.trim_heap", lambda: calls.append(None))
    write_quantised(tmp_path, Scheme(), num_hidden_layers=1, intermediate_size=256)
    for kernel, times in (("torch-int4", 2), ("dequant", 0)):
        calls.clear()
        with engine(tmp_path, 2, kernel=kernel):
            assert len(calls) == times, kernel


def test_a_bias_too_large_to_be_one_is_not_read(tmp_path: Path) -> None:
    write_quantised(tmp_path, Scheme(), "qwen3_moe", num_hidden_layers=1, **EXPERTS)
    name = "model.layers.0.mlp.experts.1.up_proj.bias"
    edit_tensors(tmp_path, lambda held: held | {name: torch.zeros(1 << 19)})
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(tmp_path)
    assert (caught.value.code, caught.value.report.where["tensor"]) == ("LM-QUANT-BIAS", name)
