"""What 4-bit weights take at the sizes people serve, planned from headers: no weight is read, and none is there to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from transformers import AutoConfig

import loadmaster as lm
from loadmaster.display.quantised import packed_kinds

GROUP: Final = 128
LLAMA_3_8B: Final = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "vocab_size": 128256,
}
"""The shapes of Llama-3-8B; four layers say as much as thirty-two."""


def write_sparse_gptq(folder: Path) -> Path:
    """Write the header of a 4-bit GPTQ model and leave its tensors a hole in the file."""
    hidden, inner, vocabulary = (LLAMA_3_8B[name] for name in ("hidden_size", "intermediate_size", "vocab_size"))
    keys = hidden // 4
    shapes = {"q": (hidden, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, hidden)}
    matrices = {f"self_attn.{name}_proj": shape for name, shape in shapes.items()}
    matrices |= {f"mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")} | {"mlp.down_proj": (hidden, inner)}
    tensors = {
        "model.embed_tokens.weight": ("F16", [vocabulary, hidden]),
        "lm_head.weight": ("F16", [vocabulary, hidden]),
        "model.norm.weight": ("F16", [hidden]),
    }
    for layer in range(LLAMA_3_8B["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        tensors |= {f"{prefix}.{name}_layernorm.weight": ("F16", [hidden]) for name in ("input", "post_attention")}
        for name, (out, columns) in matrices.items():
            tensors |= {
                f"{prefix}.{name}.qweight": ("I32", [columns // 8, out]),
                f"{prefix}.{name}.qzeros": ("I32", [columns // GROUP, out // 8]),
                f"{prefix}.{name}.scales": ("F16", [columns // GROUP, out]),
            }
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = {"F16": 2, "I32": 4}[dtype]
        for extent in shape:
            size *= extent
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    AutoConfig.for_model("llama", **LLAMA_3_8B, tie_word_embeddings=False).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    said = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    with (folder / "model.safetensors").open("wb") as out_file:
        out_file.write(len(header).to_bytes(8, "little") + header)
        out_file.truncate(8 + len(header) + end)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_gptq(tmp_path_factory.mktemp("model") / "llama")


@pytest.mark.parametrize("ranks", [1, 4])
def test_as_stored_a_quarter_of_bfloat16_and_one_percent_for_scales(folder: Path, ranks: int) -> None:
    plan = lm.plan(folder, tensor_parallel=ranks, kernel="dequant")
    (kind,) = packed_kinds(plan.data)
    assert kind.kind == "gptq, 4 bits, groups of 128"
    assert (kind.matrices, kind.kernels) == (4 * 7, {"dequant": 4 * 7})
    assert 0.25 < kind.nbytes / (2 * kind.weights) < 0.26
    assert 4.15 < kind.bits_per_weight < 4.16
    assert "bits per weight" in str(plan)
    assert "(26.0 %), by dequant (28)" in str(plan)


def test_repacked_for_torchs_own_product(folder: Path) -> None:
    """Its scales and zero points take two 16-bit numbers for each group instead of one and a half byte."""
    plan = lm.plan(folder, kernel="torch-int4", dtype="bfloat16")
    (kind,) = packed_kinds(plan.data)
    assert kind.bits_per_weight == 4 + 32 / GROUP
    staged = [binding for binding in plan.ranks[0].bindings if binding.staged]
    assert {binding.parameter.rpartition(".")[2] for binding in staged} == {"scales", "qzeros"}
    assert plan.ranks[0].staging >= sum(binding.nbytes for binding in staged)
    assert all(binding.offset >= plan.ranks[0].bytes for binding in staged)


def test_a_kernel_that_does_not_suit_says_why(folder: Path) -> None:
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(folder, kernel="autoawq")
    assert caught.value.code == "LM-QUANT-KERNEL"
    assert "autoawq" in caught.value.report.why
