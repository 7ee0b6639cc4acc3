"""The short way from stored names to parameters gives what transformers' rules give, and is taken only where it does."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_plugins.transformers_models import stored_names
from loadmaster_plugins.transformers_models.skeleton import build_skeleton
from tiny_families import tiny_config

DENSE = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "glm4",
    "olmo2",
    "gpt_neox",
    "starcoder2",
    "cohere2",
)


def tensors_of(model_type: str) -> tuple[PreTrainedModel, dict[str, TensorMeta]]:
    """Return a model on the meta device, and its own parameters as if they were stored."""
    model = build_skeleton(tiny_config(model_type).to_dict(), "F32")
    state = model.state_dict()
    return model, {
        name: TensorMeta(name=name, dtype="F32", shape=tuple(tensor.shape), file=0, start=0, stop=0)
        for name, tensor in state.items()
    }


@pytest.mark.parametrize("model_type", DENSE)
def test_both_ways_lead_to_the_same_parameters(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tensors = tensors_of(model_type)
    monkeypatch.setattr(stored_names, "_rules", lambda _: pytest.fail("the rules are not needed here"))
    short = stored_names.map_names(model, tensors)
    monkeypatch.undo()
    monkeypatch.setattr(stored_names, "_as_built", lambda *_: False)
    assert stored_names.map_names(model, tensors) == short
    assert short.sources.keys() == tensors.keys()


@pytest.mark.parametrize("change", ["name", "shape", "experts"])
def test_anything_else_goes_by_the_rules(change: str) -> None:
    model, tensors = tensors_of("qwen3_moe" if change == "experts" else "llama")
    name, tensor = next(iter(tensors.items()))
    if change == "name":
        tensors[f"model.{name}"] = tensors.pop(name)
    if change == "shape":
        tensors[name] = TensorMeta(name=name, dtype="F32", shape=(*tensor.shape, 1), file=0, start=0, stop=0)
    assert not stored_names._as_built(tensors, {name: tuple(each.shape) for name, each in model.state_dict().items()})
