"""Drawing one token per row of a step. Every token has one random number of its own, from the request's seed and its index.

So a request's tokens depend neither on the batch nor on how often it was broken off and computed again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from loadmaster_engine.run.sampler import COLDEST
from loadmaster_engine.serve.messages import NO_TOKEN, DrawnToken, RowSampling

if TYPE_CHECKING:
    import torch

SHORTLIST: Final = 1024
"""Tokens among which top-p looks first: ordering the whole vocabulary takes several times longer."""


def draw(logits: torch.Tensor, rows: Sequence[RowSampling]) -> tuple[DrawnToken, ...]:
    """Return one token per row of `logits`, float [rows, vocabulary], or NO_TOKEN where the largest is no finite number.

    Logarithms of probabilities are those of the model itself, before penalties and temperature.
    """
    import torch

    logits = logits.cpu()
    if any(row.temperature > 0 or row.logprobs >= 0 or _penalises(row) for row in rows):
        logits = logits.float()  # the likeliest token alone is the same without, and found in half the time
    adjusted = logits
    for index, row in enumerate(rows):
        if _penalises(row):
            adjusted = logits.clone() if adjusted is logits else adjusted
            adjusted[index] = penalised(adjusted[index], row)
    largest = adjusted.max(dim=-1)  # twice as fast as argmax, and the first of equals too; NaN is larger than all
    tokens: list[int] = largest.indices.masked_fill(~largest.values.isfinite(), NO_TOKEN).tolist()
    for index, row in enumerate(rows):
        if row.temperature > 0 and tokens[index] != NO_TOKEN:
            tokens[index] = _pick(remaining(adjusted[index], row), uniform(row.seed, row.index))
    if all(row.logprobs < 0 for row in rows):
        return tuple(DrawnToken(token) for token in tokens)
    logprobs = torch.log_softmax(logits, dim=-1)
    return tuple(_reported(token, logprobs[index], rows[index].logprobs) for index, token in enumerate(tokens))


def _penalises(row: RowSampling) -> bool:
    return bool(row.presence or row.frequency or row.repetition != 1.0)


def penalised(logits: torch.Tensor, row: RowSampling) -> torch.Tensor:
    """Return logits [vocabulary] after transformers' repetition penalty and OpenAI's presence and frequency penalties."""
    import torch

    result = logits.clone()
    if row.repetition != 1.0 and (seen := sorted({*row.prompt, *row.answer})):
        places = torch.tensor(seen)
        values = result[places]
        result[places] = torch.where(values < 0, values * row.repetition, values / row.repetition)
    if (row.presence or row.frequency) and row.answer:
        counts = Counter(row.answer)
        places = torch.tensor(list(counts))
        result[places] -= row.presence + row.frequency * torch.tensor(list(counts.values()), dtype=result.dtype)
    return result


def remaining(logits: torch.Tensor, row: RowSampling) -> torch.Tensor:
    """Return the probabilities [vocabulary] that temperature, top-k, top-p and min-p leave, in this order; not normalised.

    Top-p keeps the most probable tokens until their sum reaches `top_p`, the one that crosses it included. Min-p drops
    tokens below that share of the likeliest one's probability.
    """
    import torch

    logits = (logits - logits.max()) / max(row.temperature, COLDEST)
    if 0 < row.top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(row.top_k).values[-1], float("-inf"))
    probabilities = torch.softmax(logits, dim=-1)
    if row.top_p < 1.0:
        probabilities = _nucleus(probabilities, row.top_p)
    if row.min_p > 0.0:
        probabilities = probabilities.masked_fill(probabilities < row.min_p * probabilities.max(), 0.0)
    return probabilities


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the probabilities of the likeliest tokens until their sum reaches `top_p`, and zeros."""
    import torch

    size = len(probabilities)
    for count in (min(SHORTLIST, size), size):
        ordered, order = probabilities.topk(count)
        before = ordered.cumsum(-1) - ordered
        # A list whose last token is outside already has all that are inside.
        if count == size or float(before[-1]) >= top_p:
            break
    return torch.zeros_like(probabilities).scatter_(0, order, ordered.masked_fill(before >= top_p, 0.0))


def uniform(seed: int, index: int) -> float:
    """Return the random number of token `index` of a request, from 0 up to 1."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _pick(probabilities: torch.Tensor, number: float) -> int:
    """Return the token at share `number` of the summed probabilities."""
    import torch

    sums = probabilities.double().cumsum(-1)
    token = int(torch.searchsorted(sums, sums[-1:] * number, right=True))
    if token < len(sums) and probabilities[token] > 0:
        return token
    return int(probabilities.nonzero()[-1])


def _reported(token: int, logprobs: torch.Tensor, count: int) -> DrawnToken:
    if count < 0 or token == NO_TOKEN:
        return DrawnToken(token)
    best = logprobs.topk(min(count, len(logprobs)))
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return DrawnToken(token, float(logprobs[token]), top)
