"""The logits of the last position: the same numbers as those of all positions, without a copy of the output matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from loadmaster_plugins.transformers_models.build import TransformersModel
from tiny_models import IDS, SIZES, make_model


def logits(model: TransformersModel, tokens: torch.Tensor, *, last_only: bool) -> torch.Tensor:
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    with torch.inference_mode():
        return model.forward(tokens, torch.ones_like(tokens), positions, model.new_cache(), last_only=last_only)


@pytest.mark.parametrize("family", ["llama", "gemma", "qwen3"])
@pytest.mark.parametrize("length", [1, len(IDS)])
def test_they_are_those_of_all_positions(family: str, length: int) -> None:
    model: Any = TransformersModel(make_model(family))  # type: ignore[arg-type]
    tokens = torch.tensor([IDS[:length], IDS[::-1][:length]])
    last, every = (logits(model, tokens, last_only=last_only) for last_only in (True, False))
    assert last.shape[:2] == (2, 1)
    torch.testing.assert_close(last, every[:, -1:])


@pytest.mark.parametrize("rows", [1, 3])
def test_the_output_matrix_is_multiplied_once_and_not_copied(rows: int) -> None:
    # Loaded parameters take no gradients, which is what makes torch choose between the two kinds of product.
    model: Any = TransformersModel(make_model("llama").bfloat16().requires_grad_(False))  # type: ignore[arg-type]
    tokens = torch.tensor([IDS] * rows)
    logits(model, tokens, last_only=True)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        logits(model, tokens, last_only=True)
    matrix = [SIZES["hidden_size"], SIZES["vocab_size"]]
    touching = {event.name for event in profiled.events() if any(shape[-2:] == matrix for shape in event.input_shapes or ())}
    assert "aten::mm" in touching
    assert not touching & {"aten::bmm", "aten::copy_", "aten::clone"}
