"""The sampler against transformers' own logits processors, and its random numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from loadmaster_engine.run.sampler import Sampler, Sampling, nucleus
from loadmaster_engine.serve.messages import NO_TOKEN


@given(st.integers(0, 10**6), st.floats(0.1, 3), st.integers(0, 40), st.floats(0.05, 1.0))
@settings(max_examples=100, deadline=None)
def test_the_remaining_probabilities_are_those_of_transformers(seed: int, temperature: float, top_k: int, top_p: float) -> None:
    logits = torch.randn(30, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    steps = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        steps.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        steps.append(TopPLogitsWarper(top_p))
    expected = torch.softmax(steps(torch.LongTensor([[0]]), logits.clone().unsqueeze(0)), dim=-1)[0]
    ours = nucleus(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    torch.testing.assert_close(ours, expected)


def test_rows_have_random_numbers_of_their_own() -> None:
    logits = torch.zeros(3, 50)
    rows = [Sampling(temperature=1.0, seed=1), Sampling(temperature=1.0, seed=2), Sampling()]
    drawn = [Sampler(rows).draw(logits) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0][2] == 0
    alone = Sampler([rows[1]])
    both = Sampler(rows)
    assert [alone.draw(logits[:1])[0] for _ in range(5)] == [both.draw(logits)[1] for _ in range(5)]


def test_draws_follow_the_probabilities() -> None:
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1]])).expand(4000, 3)
    drawn = torch.tensor(Sampler([Sampling(temperature=1.0, seed=seed) for seed in range(4000)]).draw(logits))
    share = torch.bincount(drawn, minlength=3) / 4000
    torch.testing.assert_close(share, torch.tensor([0.7, 0.2, 0.1]), rtol=0, atol=0.03)


@pytest.mark.parametrize("temperature", [1e-40, 1e-320, 1e-9])
def test_the_coldest_temperatures_are_greedy(temperature: float) -> None:
    logits = torch.tensor([1.0, 30.0, -2.0, 29.0])
    assert nucleus(logits, Sampling(temperature=temperature)).tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_row_without_a_finite_largest_logit_gets_no_token_and_the_others_theirs() -> None:
    logits = torch.tensor([[1.0, float("nan"), 3.0], [1.0, 2.0, float("-inf")], [float("inf"), 0.0, 0.0], [0.0, 0.0, 9.0]])
    assert Sampler([Sampling()] * 4).draw(logits) == [NO_TOKEN, 1, NO_TOKEN, 2]
    cold = [Sampling(temperature=1e-9)] * 4
    assert Sampler(cold).draw(logits) == [NO_TOKEN, 1, NO_TOKEN, 2]
