"""Lean decoder layers: the same bits as transformers' own, only where a trial shows that, and with what others attached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count as numbers
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama import modeling_llama

from loadmaster_engine.run.products import arranged
from loadmaster_hookspecs.agreeing import AGREE
from loadmaster_plugins.transformers_models.build import TransformersModel
from loadmaster_plugins.transformers_models.lean import LeanLayer
from loadmaster_plugins.transformers_models.trial import Noted

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAR = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
"""Rotary parameters of a model that scales queries from position 64 on."""

LEAN = ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"]


def served(kind: str, dtype: torch.dtype = torch.bfloat16, more: dict[str, Any] | None = None) -> TransformersModel:
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES | (more or {})), dtype=dtype).eval()  # type: ignore[no-untyped-call]
    for parameter in module.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return TransformersModel(module)


def arranged_model() -> TransformersModel:
    """Return a lean model whose matrices are arranged where the processor lets them be."""
    model = served("llama")
    if arranged.can_arrange():
        arranged.arrange(model.module, lambda: model.kv_layout(1))
    model.kv_layout(9)
    return model


def lean_layers(model: TransformersModel) -> list[torch.nn.Module]:
    return [layer for layer in model.module.modules() if isinstance(vars(layer).get("forward"), LeanLayer)]


def step(model: TransformersModel, count: int = 5) -> torch.Tensor:
    positions = torch.arange(count).unsqueeze(0) * 3
    return model.step((positions * 7) % 40, positions, torch.arange(count), Noted())


def own(model: TransformersModel, count: int = 5) -> torch.Tensor:
    """Return what a step gives without lean layers, and leave them as they were."""
    lean = {layer: vars(layer).pop("forward") for layer in lean_layers(model)}
    result = step(model, count)
    for layer, forward in lean.items():
        layer.forward = forward
    return result


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", LEAN)
def test_common_layers_become_lean_and_give_the_same_bits(kind: str, dtype: torch.dtype) -> None:
    model = served(kind, dtype)
    model.kv_layout(9)
    assert len(lean_layers(model)) == 2
    for count in (1, 5, 40):
        assert torch.equal(step(model, count), own(model, count))


def test_a_feed_forward_module_of_another_form_is_called() -> None:
    model = served("qwen3_moe", more=EXPERTS)
    model.kv_layout(9)
    assert len(lean_layers(model)) == 2
    assert torch.equal(step(model), own(model))


@pytest.mark.parametrize("kind", ["gemma2", "glm"])
def test_layers_that_cap_scores_or_turn_in_pairs_stay(kind: str) -> None:
    model = served(kind, more={"pad_token_id": 0})
    model.kv_layout(9)
    assert lean_layers(model) == []


def test_layers_that_compute_something_else_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def skewed(module: modeling_llama.LlamaMLP, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = plain(module, rows) * 1.5  # type: ignore[no-untyped-call]
        return result

    plain = modeling_llama.LlamaMLP.forward
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", skewed)
    model = served("llama")
    model.kv_layout(9)
    assert lean_layers(model) == []


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("ministral3", {"max_position_embeddings": 256, "rope_parameters": FAR}),
        ("olmo", {"clip_qkv": 100.0}),
        ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4}),
    ],
)
def test_layers_stay_that_scale_far_positions_clip_large_values_or_norm_all_heads(kind: str, more: dict[str, Any]) -> None:
    model = served(kind, torch.float32, {**more, "eos_token_id": 1, "pad_token_id": 0})
    model.kv_layout(9)
    assert lean_layers(model) == []


def test_one_token_makes_nothing_lean() -> None:
    model = served("llama")
    model.kv_layout(1)
    assert lean_layers(model) == []


@pytest.mark.parametrize(
    "path", ["", "self_attn", "self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp", "mlp.up_proj", "mlp.act_fn"]
)
@pytest.mark.parametrize("before", [False, True])
def test_what_is_attached_later_counts(path: str, *, before: bool) -> None:
    model = arranged_model()
    plain = step(model)
    part = lean_layers(model)[0].get_submodule(path)
    handles = [part.register_forward_pre_hook(_given_twice, with_kwargs=True)] if before else []
    handles += [] if before else [part.register_forward_hook(_twice)]
    changed = step(model)
    assert torch.equal(changed, own(model))
    assert not torch.equal(changed, plain)
    handles[0].remove()
    assert torch.equal(step(model), plain)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "qwen3_moe"])
def test_what_modules_ask_of_other_ranks_is_not_asked_again_for_the_trial(kind: str) -> None:
    model = served(kind, more=EXPERTS if kind == "qwen3_moe" else None)
    runs = Counter[str]()
    for name, part in model.module.named_modules():
        if name.endswith(("o_proj", "down_proj", "mlp.experts")):
            part.register_forward_hook(partial(_summed, runs, name))
    model.kv_layout(1)
    once = runs.copy()
    model.kv_layout(9)
    assert runs == {name: 3 * count for name, count in once.items()}
    assert len(once) == 4
    assert len(lean_layers(model)) == 2
    assert torch.equal(step(model), own(model))


@pytest.mark.parametrize("call", [3, 4])
def test_layers_stay_whose_modules_compute_something_else_each_time(call: int) -> None:
    """The output projection of the second layer is called by the probe, by the layer's own code, and by the lean one."""
    model = served("llama")
    part = model.module.get_submodule("model.layers.1.self_attn.o_proj")
    calls = numbers(1)
    part.forward = lambda rows: type(part).forward(part, rows) * (1.5 if next(calls) == call else 1.0)
    part.register_forward_hook(lambda _module, _args, output: output.clone())
    model.kv_layout(9)
    assert len(lean_layers(model)) == (1 if call == 3 else 2)


def test_ranks_agree_which_layers_are_lean() -> None:
    model = served("llama")
    asked: list[list[bool]] = []

    def agree(votes: list[bool]) -> tuple[bool, ...]:
        asked.append(votes)
        return False, True

    setattr(model.module, AGREE, agree)
    model.kv_layout(9)
    assert asked == [[True, True]]
    assert lean_layers(model) == [model.module.get_submodule("model.layers.1")]


@pytest.mark.parametrize("path", ["self_attn.k_proj", "mlp.gate_proj", "mlp.down_proj", "input_layernorm"])
def test_a_replaced_parameter_is_used_at_once(path: str) -> None:
    model = arranged_model()
    plain, part = step(model), lean_layers(model)[0].get_submodule(path)
    part._parameters["weight"] = torch.nn.Parameter(part.get_parameter("weight") * -2, requires_grad=False)
    assert torch.equal(step(model), own(model))
    assert not torch.equal(step(model), plain)


@pytest.mark.parametrize("count", [1, 5, 40])
def test_products_taken_together_give_the_same_bits(count: int) -> None:
    model = arranged_model()
    assert len(lean_layers(model)) == 2
    assert torch.equal(step(model, count), own(model, count))


@pytest.mark.parametrize("path", ["self_attn", "mlp"])
def test_code_that_an_instance_got_later_runs(path: str) -> None:
    model = arranged_model()
    part = lean_layers(model)[0].get_submodule(path)
    plain, theirs = step(model), part.forward
    part.forward = lambda *args, **kwargs: _twice(part, args, theirs(*args, **kwargs))
    assert torch.equal(step(model), own(model))
    assert not torch.equal(step(model), plain)


def test_outside_of_steps_the_own_code_runs() -> None:
    model = served("llama", torch.float32)
    tokens = torch.arange(6).unsqueeze(0)
    before = model.forward(tokens, torch.ones_like(tokens), tokens, None, last_only=False)
    model.kv_layout(9)
    torch.testing.assert_close(model.forward(tokens, torch.ones_like(tokens), tokens, None, last_only=False), before)


def _summed(runs: Counter[str], name: str, _module: object, _args: object, output: torch.Tensor) -> torch.Tensor:
    """Do as a sum over two ranks does that writes its result where the tensor was."""
    runs[name] += 1
    return output.mul_(2)


def _twice(_module: object, _args: object, output: object) -> object:
    return tuple(_twice(None, None, one) for one in output) if isinstance(output, tuple) else _doubled(output)


def _given_twice(_module: object, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, dict[str, object]]:
    if not args:
        return args, {**kwargs, "hidden_states": _doubled(kwargs["hidden_states"])}
    return (_doubled(args[0]), *args[1:]), kwargs


def _doubled(value: object) -> object:
    return value * 2 if isinstance(value, torch.Tensor) else value
