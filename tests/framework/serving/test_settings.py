"""Settings: unknown names and absurd values are errors that help."""

from __future__ import annotations

from typing import Any

import pytest

import loadmaster as lm
from loadmaster.serving import EngineSettings, SamplingParams, settings_from
from loadmaster.serving.params import check_params


def test_an_unknown_setting_is_answered_with_the_nearest() -> None:
    with pytest.raises(lm.UsageError, match="max_model_length") as caught:
        settings_from({"max_model_length": 5})
    assert caught.value.hints == ("did you mean max_model_len?",)
    with pytest.raises(lm.UsageError) as caught:
        settings_from({"zzz": 5})
    assert "kv_bytes" in caught.value.hints[0]


@pytest.mark.parametrize(
    "values",
    [
        {"kv_bytes": 0},
        {"kv_bytes": "much"},
        {"max_model_len": 1},
        {"block_size": 0},
        {"block_size": "auto"},
        {"max_batch_tokens": 1.5},
        {"max_running": True},
        {"adapter_bytes": -1},
        {"max_adapter_rank": "auto"},
        {"max_waiting": -1},
        {"arrange_matrices": "yes"},
    ],
)
def test_absurd_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(lm.UsageError) as caught:
        settings_from(values)
    assert caught.value.code == "LM-USAGE-SETTING"
    assert next(iter(values)) in str(caught.value)


def test_values_are_taken() -> None:
    assert settings_from({"kv_bytes": 100, "max_model_len": "auto"}) == EngineSettings(kv_bytes=100)


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": 0},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"top_k": 1.5},
        {"min_p": 2},
        {"presence_penalty": float("inf")},
        {"repetition_penalty": 0},
        {"stop": ("",)},
        {"stop_ids": ("a",)},
        {"seed": 2**63},
        {"logprobs": -1},
        {"logprobs": 10**6},
    ],
)
def test_absurd_parameters_are_named(values: dict[str, Any]) -> None:
    with pytest.raises(lm.UsageError, match=next(iter(values))) as caught:
        check_params(SamplingParams(**values))
    assert caught.value.code == "LM-USAGE-SAMPLING"


def test_ordinary_parameters_pass() -> None:
    check_params(SamplingParams())
    check_params(SamplingParams(temperature=1, top_p=1, stop=("x",), seed=-5, logprobs=0))
