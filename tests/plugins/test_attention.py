"""The attention function: inputs it does not know are refused, and keys that were not selected get nothing."""

from __future__ import annotations

import pytest
import torch

from loadmaster_plugins.transformers_models.attention import ATTENTION, ATTENTION_WITH_NUMBERS, attention, attention_name
from loadmaster_plugins.transformers_models.selected_keys import only_selected


def heads(count: int, tokens: int = 3) -> torch.Tensor:
    return torch.rand(1, count, tokens, 4)


def test_an_input_that_might_change_the_result_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="attention input head_mask of Module is not supported"):
        attention(torch.nn.Module(), heads(2), heads(1), heads(1), None, head_mask=torch.ones(2))
    attention(torch.nn.Module(), heads(2), heads(1), heads(1), None, head_mask=None, sliding_window=4)


def test_a_large_sink_takes_all_attention_of_its_head() -> None:
    output, _ = attention(torch.nn.Module(), heads(2), heads(1), heads(1), None, s_aux=torch.tensor([1e4, -1e4]))
    plain, _ = attention(torch.nn.Module(), heads(2), heads(1), heads(1), None)
    assert output.shape == plain.shape == (1, 3, 2, 4)
    assert float(output[:, :, 0].abs().max()) == 0.0
    assert float(output[:, :, 1].abs().min()) > 0.0


def test_masks_of_both_kinds_keep_selected_keys_only() -> None:
    chosen = torch.tensor([[[0, 1], [1, 2]]])
    expected = torch.tensor([[[[True, True, False], [False, True, True]]]])
    assert torch.equal(only_selected(None, chosen, 3), expected)
    assert torch.equal(only_selected(torch.ones(1, 1, 2, 3, dtype=torch.bool), chosen, 3), expected)
    assert torch.equal(only_selected(torch.zeros(1, 1, 2, 3), chosen, 3) == 0, expected)


def test_models_that_cannot_use_masks_of_true_and_false_ask_for_numbers() -> None:
    class Plain:
        pass

    class Numbers:
        _supports_sdpa = False

    assert attention_name(Plain) == attention_name(None) == ATTENTION
    assert attention_name(Numbers) == ATTENTION_WITH_NUMBERS
