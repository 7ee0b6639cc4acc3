"""Drawing: against transformers' own processors, against frequencies, and independent of company."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from loadmaster_engine.run.paged.sampling import SHORTLIST, draw, penalised, remaining, uniform
from loadmaster_engine.serve.messages import NO_TOKEN, RowSampling

LOGITS = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)) * 3


def row(**values: Any) -> RowSampling:
    return RowSampling(**{"index": 0, **values})


def test_without_temperature_the_likeliest_token_is_drawn_and_nothing_is_reported() -> None:
    drawn = draw(LOGITS, [row(), row(), row()])
    assert [token.id for token in drawn] == LOGITS.argmax(-1).tolist()
    assert all(token.top == () for token in drawn)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_equal_likeliest_tokens_the_first_is_drawn_whatever_others_ask_for(dtype: torch.dtype) -> None:
    logits = torch.randn(6, 49152, generator=torch.Generator().manual_seed(3)).clamp(max=2.5).to(dtype)
    expected = [int((one == one.max()).nonzero()[0]) for one in logits]
    assert int((logits == logits.max()).sum()) > 6
    assert [token.id for token in draw(logits, [row()] * 6)] == expected
    assert [token.id for token in draw(logits, [row()] * 5 + [row(temperature=1.0)])][:5] == expected[:5]


@pytest.mark.parametrize(
    ("values", "warpers"),
    [
        ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
        ({"temperature": 1.0, "top_k": 5}, [TopKLogitsWarper(5)]),
        ({"temperature": 1.3, "top_p": 0.8}, [TemperatureLogitsWarper(1.3), TopPLogitsWarper(0.8)]),
        ({"temperature": 1.0, "min_p": 0.1}, [MinPLogitsWarper(0.1)]),
    ],
)
def test_what_remains_is_what_transformers_leaves(values: dict[str, Any], warpers: list[Any]) -> None:
    for logits in LOGITS:
        scores = logits[None]
        for warper in warpers:
            scores = warper(None, scores)
        expected = torch.softmax(scores[0], -1)
        left = remaining(logits, row(**values))
        assert torch.equal(left > 0, expected > 0)
        torch.testing.assert_close(left / left.sum(), expected)


@pytest.mark.parametrize("heat", [0.2, 5.0])
def test_top_p_looks_beyond_its_short_list_where_it_must(heat: float) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(2))
    expected = TopPLogitsWarper(0.95)(None, logits[None] / heat)[0].isfinite()
    assert (int(expected.sum()) > SHORTLIST) is (heat > 1)
    left = remaining(logits, row(temperature=heat, top_p=0.95)) > 0
    # Sums of thousands of numbers in another order: one token at the border may differ.
    assert int((left != expected).sum()) <= 1


def test_penalties() -> None:
    prompt, answer = (1, 2, 3), (3, 4, 4, 4)
    seen = torch.tensor([[*prompt, *answer]])
    expected = RepetitionPenaltyLogitsProcessor(1.3)(seen, LOGITS[:1].clone())[0]
    assert torch.equal(penalised(LOGITS[0], row(repetition=1.3, prompt=prompt, answer=answer)), expected)
    result = penalised(LOGITS[0], row(presence=0.5, frequency=0.25, prompt=prompt, answer=answer))
    change = (LOGITS[0] - result).tolist()
    assert change[4] == pytest.approx(0.5 + 3 * 0.25)
    assert change[3] == pytest.approx(0.75)
    assert sum(map(abs, change)) == pytest.approx(2.0)


def test_tokens_come_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -30.0]])
    draws = Counter(draw(logits, [row(index=index, temperature=1.0, seed=5)])[0].id for index in range(4000))
    expected = torch.softmax(logits[0], -1)
    for token in range(3):
        assert draws[token] / 4000 == pytest.approx(float(expected[token]), abs=0.03)
    assert draws[3] == 0


def test_a_draw_depends_on_seed_and_index_and_not_on_other_rows() -> None:
    wild = [row(index=7, temperature=2.0, seed=seed) for seed in range(3)]
    together = [token.id for token in draw(LOGITS, wild)]
    alone = [draw(LOGITS[place : place + 1], [one])[0].id for place, one in enumerate(wild)]
    assert together == alone
    assert len({uniform(seed, index) for seed in range(30) for index in range(30)}) == 900
    assert all(0 <= uniform(seed, 0) < 1 for seed in range(100))


def test_logprobs_are_the_models_own() -> None:
    drawn = draw(LOGITS, [row(logprobs=2, temperature=0.5, seed=1), row(), row(logprobs=0)])
    own = torch.log_softmax(LOGITS, -1)
    assert drawn[0].logprob == pytest.approx(float(own[0, drawn[0].id]))
    best = own[0].topk(2)
    assert [token for token, _ in drawn[0].top] == best.indices.tolist()
    assert [value for _, value in drawn[0].top] == pytest.approx(best.values.tolist())
    assert drawn[1].top == drawn[2].top == ()
    assert drawn[2].logprob == pytest.approx(float(own[2].max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_a_finite_largest_logit_get_no_token_and_the_others_theirs(dtype: torch.dtype) -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(4)).to(dtype)
    logits[0, 7], logits[1, 0], logits[2] = float("nan"), float("inf"), float("-inf")
    logits[3, 1:] = float("-inf")  # masked tokens are as good as any others
    for company in ({}, {"temperature": 0.8, "seed": 3}, {"logprobs": 3}, {"repetition": 1.2, "prompt": (1, 2)}):
        drawn = draw(logits, [row(**company)] * 4 + [row(), row(temperature=1.0, seed=9)])
        assert [token.id for token in drawn[:4]] == [NO_TOKEN, NO_TOKEN, NO_TOKEN, 0]
        assert all(token.top == () for token in drawn[:3])
        assert drawn[4].id == int(logits[4].float().argmax())
        assert drawn[5].id == draw(logits[5:], [row(temperature=1.0, seed=9)])[0].id
