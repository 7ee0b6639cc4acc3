"""Requests: are their values sensible, and what does the scheduler need to know of them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import Final

from loadmaster.serving.types import SamplingParams
from loadmaster_engine.serve.messages import RowSampling
from loadmaster_engine.serve.sequence import Wish
from loadmaster_hookspecs.errors import UsageError

MOST_LOGPROBS: Final = 100
"""Likeliest tokens that may be asked for at every position."""

RANGES: Final = (
    "max_tokens from 1, temperature from 0, top_p above 0 and up to 1, top_k from 0 (all tokens), min_p from 0 to 1, penalties "
    f"finite, repetition_penalty above 0, stop texts not empty, seed below 2^62, logprobs from 0 to {MOST_LOGPROBS}"
)


def check_params(params: SamplingParams) -> None:
    """Raise UsageError LM-USAGE-SAMPLING that names every value out of its range."""
    valid = {
        "max_tokens": _whole(params.max_tokens) and params.max_tokens >= 1,
        "temperature": _number(params.temperature) and params.temperature >= 0,
        "top_p": _number(params.top_p) and 0 < params.top_p <= 1,
        "top_k": _whole(params.top_k) and params.top_k >= 0,
        "min_p": _number(params.min_p) and 0 <= params.min_p <= 1,
        "presence_penalty": _number(params.presence_penalty),
        "frequency_penalty": _number(params.frequency_penalty),
        "repetition_penalty": _number(params.repetition_penalty) and params.repetition_penalty > 0,
        "stop": all(isinstance(text, str) and text for text in params.stop),
        "stop_ids": all(_whole(token) for token in params.stop_ids),
        "seed": params.seed is None or (_whole(params.seed) and abs(params.seed) < 1 << 62),
        "logprobs": params.logprobs is None or (_whole(params.logprobs) and 0 <= params.logprobs <= MOST_LOGPROBS),
    }
    wrong = [f"{name}={getattr(params, name)!r}" for name, good in valid.items() if not good]
    if wrong:
        raise UsageError("LM-USAGE-SAMPLING", f"sampling values out of range: {', '.join(wrong)}", hints=[RANGES])


def wish_for(params: SamplingParams, room: int, end_ids: Sequence[int], adapter: int = 0, adapter_key: str = "") -> Wish:
    """Return what a request asks of the scheduler; `room` bounds its answer in tokens. Without a seed one is drawn."""
    sampling = RowSampling(
        index=0,
        seed=secrets.randbits(48) if params.seed is None else params.seed,
        temperature=float(params.temperature),
        top_k=params.top_k,
        top_p=float(params.top_p),
        min_p=float(params.min_p),
        presence=float(params.presence_penalty),
        frequency=float(params.frequency_penalty),
        repetition=float(params.repetition_penalty),
        logprobs=-1 if params.logprobs is None else params.logprobs,
    )
    ends = () if params.ignore_eos else end_ids
    return Wish(
        sampling=sampling,
        max_tokens=min(params.max_tokens, room),
        stop_ids=frozenset((*params.stop_ids, *ends)),
        adapter=adapter,
        adapter_key=adapter_key,
    )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
