from __future__ import annotations

import json
from pathlib import Path

import pytest

import loadmaster as lm
from checkpoints import three_parts, write_shards
from loadmaster.display.inspection_table import render_inspection
from loadmaster.inspection import quantization_of
from runnable_model import write_runnable_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_runnable_model(tmp_path / "model")


def test_sizes_and_counts_are_those_of_the_file(model: Path) -> None:
    found = lm.inspect(model)
    size = (model / "model.safetensors").stat().st_size
    header = 8 + int.from_bytes((model / "model.safetensors").read_bytes()[:8], "little")
    assert [(file.name, file.size, file.tensors) for file in found.files] == [("model.safetensors", size, 20)]
    assert found.bytes_total == size - header
    assert found.bytes_by_dtype == {"F32": size - header}
    assert found.parameters == (size - header) // 4
    assert found.tensors == 20


def test_the_model_is_described_without_reading_its_weights(model: Path) -> None:
    found = lm.inspect(model)
    assert found.family == "transformers"
    assert found.architecture == "LlamaForCausalLM"
    assert found.outline is not None
    assert (found.outline.query_heads, found.outline.kv_heads, found.outline.head_dim) == (9, 3, 8)
    assert 0 < found.bytes_read < 10_000


def test_a_model_that_nobody_can_build_is_inspected_all_the_same(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    del config["num_attention_heads"]
    (model / "config.json").write_text(json.dumps({**config, "architectures": ["Unheard"]}))
    found = lm.inspect(model)
    assert found.outline is None
    assert found.architecture == "Unheard"
    assert [(finding.level, finding.code) for finding in found.findings] == [("warning", "LM-CONFIG-KEY")]
    assert "no plugin builds it" in render_inspection(found)


def test_shards_are_listed_in_order(tmp_path: Path) -> None:
    found = lm.inspect(write_shards(tmp_path / "model", three_parts()))
    assert [(file.name, file.tensors) for file in found.files] == [
        (f"model-0000{number}-of-00003.safetensors", 2) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, ""),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}, "gptq, bits 4, group_size 128"),
        ({"text_config": {"quantization_config": {"quant_method": "awq", "w_bit": 4}}}, "awq, w_bit 4"),
        ({"quantization_config": {"bits": 8}}, "unnamed, bits 8"),
        ({"quantization_config": "4bit"}, ""),
        ({"text_config": None}, ""),
    ],
)
def test_quantisation_is_named_as_the_configuration_has_it(config: dict[str, object], text: str) -> None:
    assert quantization_of(config) == text


@pytest.mark.parametrize(
    ("content", "text"), [('{"peft_type": "LORA", "r": 8}', "LORA, r 8"), ("[]", "adapter_config.json is not a JSON object")]
)
def test_an_adapter_beside_the_weights_is_named(model: Path, content: str, text: str) -> None:
    (model / "adapter_config.json").write_text(content)
    found = lm.inspect(model)
    assert found.adapter == text
    assert f"adapter   {text}\n" in render_inspection(found)


def test_the_text_has_what_a_person_wants_to_know(model: Path) -> None:
    (model / "generation_config.json").write_text('{"temperature": 0.6, "do_sample": true, "pad_token_id": 3}')
    text = render_inspection(lm.inspect(model))
    assert "holds     20 tensors, 87,984 parameters, 351.9 kB\n" in text
    assert "sampling  temperature=0.6, do_sample=True\n" in text
    assert text.splitlines()[-1].startswith("model.safetensors  ")
