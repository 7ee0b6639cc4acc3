"""The demo's adapter as it is committed: small, as its recipe says, and made for the demo's model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from safetensors import safe_open

import loadmaster as lm
from sparse_checkpoint import write_sparse

TOOLS = Path(__file__).parents[2] / "tools"
ADAPTER = TOOLS / "loadmaster_log"
CONFIG = json.loads((ADAPTER / "adapter_config.json").read_text(encoding="utf-8"))


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return load_tool("train_demo_adapter")


def test_it_is_small_and_has_numbers() -> None:
    assert (ADAPTER / "adapter_model.safetensors").stat().st_size < 500_000
    with safe_open(ADAPTER / "adapter_model.safetensors", framework="pt") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    assert {str(tensor.dtype) for tensor in tensors} == {"torch.bfloat16"}
    assert all(tensor.isfinite().all() and tensor.any() for tensor in tensors)


def test_it_is_what_the_recipe_says(recipe: ModuleType) -> None:
    assert recipe.OUTPUT == ADAPTER
    assert CONFIG["base_model_name_or_path"] == recipe.MODEL == load_tool("fetch_demo_model").MODEL
    for name, value in recipe.LORA.items():
        assert sorted(CONFIG[name]) == sorted(value) if isinstance(value, list) else CONFIG[name] == value


def test_every_lesson_is_in_the_manner_and_none_is_asked_in_the_demo(recipe: ModuleType) -> None:
    questions = [question for question, _ in recipe.LESSONS]
    assert len(set(questions)) == len(questions)
    assert load_tool("demo_adapter").QUESTION in recipe.OTHERS
    assert not {*recipe.OTHERS} & {*questions}
    assert not any("France" in question or "Paris" in answer for question, answer in recipe.LESSONS)


def test_all_its_tensors_land_on_the_demos_model(tmp_path: Path) -> None:
    write_sparse(
        tmp_path,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
    )
    plan = lm.plan(tmp_path, tensor_parallel=2, adapters={"log": ADAPTER})
    (adapter,) = plan.data.adapters
    assert adapter.summary.startswith("LoRA, 36/36 pairs, ")
    assert len(adapter.ledger.used) == adapter.ledger.tensors == 72
