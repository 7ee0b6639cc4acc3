"""Lighter norms: the same bits as transformers' own, and only for modules that follow a known rule."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from loadmaster_plugins.transformers_models.norms import lighten_norms

TYPES = [torch.float32, torch.bfloat16, torch.float16]


def norm(kind: type[torch.nn.Module], dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(1)
    made = kind(48, eps=1e-5).to(dtype)
    made.weight = torch.nn.Parameter(torch.randn(48).to(dtype), requires_grad=False)
    return made


@pytest.mark.parametrize("shape", [(1, 1, 48), (1, 9, 48), (1, 5, 3, 48), (1, 0, 48)])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma3RMSNorm])
def test_results_are_the_same_bits_and_inputs_stay(
    kind: type[torch.nn.Module], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    module = norm(kind, dtype)
    rows = (torch.randn(shape) * 3).to(dtype)
    before, wanted = rows.clone(), module(rows)
    assert lighten_norms(torch.nn.ModuleList([module]), dtype) == 1
    assert "forward" in vars(module)
    assert torch.equal(module(rows), wanted)
    assert torch.equal(rows, before)


def test_a_replaced_weight_is_used_at_once() -> None:
    module, other = norm(LlamaRMSNorm, torch.float32), norm(LlamaRMSNorm, torch.float32)
    lighten_norms(torch.nn.ModuleList([module]), torch.float32)
    other.weight = torch.nn.Parameter(-other.get_parameter("weight"), requires_grad=False)
    module._parameters["weight"] = other.get_parameter("weight")
    rows = torch.randn(1, 4, 48)
    assert torch.equal(module(rows), other(rows))


class SkewedRMSNorm(LlamaRMSNorm):
    """A rule of its own."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().forward(hidden_states) + 1e-3
        return result


class BiasedRMSNorm(LlamaRMSNorm):
    """Another parameter."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        self.bias = torch.nn.Parameter(torch.ones(width))


@pytest.mark.parametrize("kind", [SkewedRMSNorm, BiasedRMSNorm, torch.nn.LayerNorm])
def test_other_rules_stay(kind: type[torch.nn.Module]) -> None:
    module = kind(48, eps=1e-5)
    assert lighten_norms(torch.nn.ModuleList([module]), torch.float32) == 0
    assert "forward" not in vars(module)


def test_what_rounds_elsewhere_stays() -> None:
    assert lighten_norms(torch.nn.ModuleList([norm(GptOssRMSNorm, torch.bfloat16)]), torch.bfloat16) == 0
