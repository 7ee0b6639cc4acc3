"""GPTQ and AWQ checkpoints of every kind through the whole of loadmaster: equal to the plain model they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import loadmaster as lm
from quantized_models import Method, quantise_folder
from tiny_models import IDS, make_model, reference_logits, relative_error, save_model

TOLERANCE = 1e-5
SIZES: dict[str, Any] = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 224}


def engine(folder: Path, ranks: int) -> lm.Engine:
    return lm.Engine(folder, tensor_parallel=ranks, executor="inline", dtype="float32", kernel="dequant")


@pytest.mark.parametrize("ranks", [2, 4])
def test_act_order_and_shared_groups_at_other_sizes(ranks: int, tmp_path: Path) -> None:
    method = Method(group=48, act_order=ranks == 4)
    save_model(make_model("llama", **SIZES), tmp_path)
    twin = quantise_folder(tmp_path, method, lambda name: name.endswith("_proj.weight"))
    with engine(tmp_path, ranks) as loaded:
        assert relative_error(loaded.logits(IDS), reference_logits(lm.load_model(twin, dtype="float32"), IDS)) < TOLERANCE


METHODS = {
    "4 bits, a group of all columns": Method(group=-1),
    "4 bits, groups that no rank's part is a multiple of": Method(group=48),
    "3 bits": Method(bits=3),
    "2 bits": Method(bits=2, group=16, version="v2"),
    "8 bits, act-order": Method(bits=8, group=64, act_order=True),
    "3 bits, act-order": Method(bits=3, group=16, act_order=True),
    "unpacked zero points": Method(version="plain"),
    "gemm": Method(layout="gemm"),
    "gemm, one group": Method(layout="gemm", group=-1),
    "gemv": Method(layout="gemv"),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_every_kind_of_file_in_a_dense_model(method: Method, tmp_path: Path) -> None:
    save_model(make_model("llama", **SIZES), tmp_path)
    twin = quantise_folder(tmp_path, method, lambda name: name.endswith("_proj.weight"))
    reference = reference_logits(lm.load_model(twin, dtype="float32"), IDS)
    for ranks in (1, 3):
        with engine(tmp_path, ranks) as loaded:
            assert relative_error(loaded.logits(IDS), reference) < TOLERANCE, ranks
            assert loaded.report.amplification == 1.0


@pytest.mark.parametrize("method", [Method(), Method(layout="gemm")])
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}),
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ],
)
def test_experts_that_the_model_keeps_in_one_parameter(
    family: str, sizes: dict[str, Any], method: Method, tmp_path: Path
) -> None:
    save_model(make_model(family, **{**SIZES, **sizes}), tmp_path)
    twin = quantise_folder(tmp_path, method, lambda name: ".experts." in name)
    reference = reference_logits(lm.load_model(twin, dtype="float32"), IDS)
    for ranks in (1, 3):
        with engine(tmp_path, ranks) as loaded:
            assert relative_error(loaded.logits(IDS), reference) < TOLERANCE, ranks


def test_a_quantised_output_head(tmp_path: Path) -> None:
    save_model(make_model("llama", **SIZES, vocab_size=256), tmp_path)
    twin = quantise_folder(tmp_path, Method(), lambda name: name == "lm_head.weight")
    reference = reference_logits(lm.load_model(twin, dtype="float32"), IDS)
    for ranks in (1, 3):
        with engine(tmp_path, ranks) as loaded:
            assert relative_error(loaded.logits(IDS), reference) < TOLERANCE, ranks


def test_an_absent_tensor_is_named(tmp_path: Path) -> None:
    save_model(make_model("llama", **SIZES), tmp_path)
    quantise_folder(tmp_path, Method(), lambda name: name.endswith("_proj.weight"))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(lm.IntegrityError) as caught, engine(tmp_path, 1):
        pass
    assert caught.value.code == "LM-GPTQ-MISSING"
    assert caught.value.report.where["tensor"] == "model.layers.1.mlp.up_proj.scales"
