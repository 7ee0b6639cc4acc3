"""What a plan promises: headers only, the same digest anywhere, exact sums, JSON and back, refusals without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import loadmaster as lm
from tiny_models import make_model, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("llama", hidden_size=256, vocab_size=4000), tmp_path_factory.mktemp("llama"))


def test_planning_reads_headers_and_configuration_only(folder: Path) -> None:
    plan = lm.plan(folder, tensor_parallel=2)
    small = sum(path.stat().st_size for path in folder.glob("*.json"))
    assert 0 < plan.data.bytes_read_to_plan <= plan.data.files[0].header_bytes + small + 1000
    assert plan.ledger.bytes_unique > 5_000_000


def test_sampling_a_tied_head_is_metered_too(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_model(make_model("llama", tie_word_embeddings=True, vocab_size=40000), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    plan = lm.plan(tmp_path)
    assert plan.ledger.aliased
    small = sum(path.stat().st_size for path in tmp_path.glob("*.json")) + plan.data.files[0].header_bytes
    assert small < plan.data.bytes_read_to_plan < small + 150_000


def test_the_digest_does_not_depend_on_the_place(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    first, second = lm.plan(folder, tensor_parallel=3), lm.plan(copy, tensor_parallel=3)
    assert first.digest == second.digest
    assert first.data.source != second.data.source
    assert lm.plan(folder, tensor_parallel=2).digest != first.digest
    assert lm.plan(folder, tensor_parallel=3, read_mode="gathered").digest != first.digest


def test_a_plan_survives_json_and_an_altered_one_is_refused(folder: Path) -> None:
    plan = lm.plan(folder, tensor_parallel=2)
    again = lm.Plan.from_json(plan.to_json())
    assert again.data == plan.data
    document = json.loads(plan.to_json())
    document["ranks"][0]["bytes"] += 64
    with pytest.raises(lm.UsageError) as caught:
        lm.Plan.from_json(json.dumps(document))
    assert caught.value.code == "LM-PLAN-FILE"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_arenas_are_exactly_what_parameters_need(folder: Path, ranks: int) -> None:
    plan = lm.plan(folder, tensor_parallel=ranks, read_mode="direct")
    for rank, roles in zip(plan.ranks, plan.ledger.roles, strict=True):
        assert rank.bytes == sum(roles.values())
        assert rank.bytes == max(binding.offset + binding.nbytes for binding in rank.bindings)
    assert sum(rank.bytes_charged for rank in plan.ranks) == plan.ledger.bytes_unique


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_mapped_parameters_take_no_part_of_the_arena(folder: Path, ranks: int) -> None:
    copied = lm.plan(folder, tensor_parallel=ranks, read_mode="direct")
    for mode in ("auto", "mapped"):
        plan = lm.plan(folder, tensor_parallel=ranks, read_mode=mode)
        for rank, whole, roles in zip(plan.ranks, copied.ranks, plan.ledger.roles, strict=True):
            held = [binding for binding in rank.bindings if binding.view is None]
            assert rank.bytes == max((binding.offset + binding.nbytes for binding in held), default=0)
            assert rank.bytes_mapped == sum(binding.nbytes for binding in rank.bindings if binding.view)
            assert rank.bytes + rank.bytes_mapped == sum(roles.values())
            assert whole.bytes - 64 * len(rank.bindings) <= rank.bytes + rank.bytes_mapped <= whole.bytes
            assert rank.bytes_planned == whole.bytes_planned
            assert rank.bytes_charged == whole.bytes_charged
    assert sum(rank.bytes_charged for rank in plan.ranks) == plan.ledger.bytes_unique


def test_a_vocabulary_that_does_not_divide_is_padded_and_stays_invisible(tmp_path: Path) -> None:
    folder = save_model(make_model("llama", vocab_size=250), tmp_path)
    plan = lm.plan(folder, tensor_parallel=4)
    heads = [next(b for b in rank.bindings if b.parameter == "lm_head.weight") for rank in plan.ranks]
    assert [binding.shape for binding in heads] == [(64, 64)] * 4
    with lm.Engine(folder, tensor_parallel=4, executor="inline") as engine:
        assert engine.logits([1, 2]).shape == (2, 250)


REFUSE = """
import sys, json
import loadmaster as lm
try:
    lm.plan(sys.argv[1], tensor_parallel=8, equal_ranks=True)
except lm.PlanError as error:
    print(json.dumps({"code": error.code, "text": str(error), "torch": "torch" in sys.modules}))
"""


def test_an_impossible_split_is_refused_from_the_configuration_alone(tmp_path: Path) -> None:
    sizes = {"num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584, "intermediate_size": 18944}
    config = {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "num_hidden_layers": 28,
        "vocab_size": 152064,
        **sizes,
    }
    save_model(make_model("qwen2"), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-c", REFUSE, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(done.stdout)
    assert answer["code"] == "LM-PLAN-HEADS"
    assert "Qwen2ForCausalLM attention" in answer["text"]
    assert "28 query heads (4 key-value heads) cannot be divided equally over 8 ranks" in answer["text"]
    assert "1, 2, 4, 7, 14, 28" in answer["text"]
    assert answer["torch"] is False


@pytest.mark.parametrize(
    ("key", "value"), [("num_attention_heads", None), ("hidden_size", -1), ("vocab_size", "many"), ("num_key_value_heads", 3)]
)
def test_an_absurd_configuration_is_refused_by_its_key(tmp_path: Path, key: str, value: object) -> None:
    save_model(make_model("llama"), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(lm.PlanError) as caught:
        lm.plan(tmp_path)
    assert caught.value.report.where["key"] == key


@pytest.mark.parametrize(
    ("option", "value"), [("dtype", "int8"), ("device", "tpu"), ("read_mode", "fast"), ("tensor_parallel", 0)]
)
def test_unknown_settings_are_usage_errors(folder: Path, option: str, value: object) -> None:
    with pytest.raises(lm.UsageError):
        lm.plan(folder, **{option: value})  # type: ignore[arg-type]
