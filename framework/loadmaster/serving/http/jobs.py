"""A request that is understood: prompts as token ids, and one choice per answer that is asked for."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from loadmaster.serving.http.errors import ApiError, bad_request
from loadmaster.serving.http.prompts import Prompt
from loadmaster.serving.http.requests import GenerationFields
from loadmaster.serving.types import SamplingParams

_SEEDS = 1 << 62

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


class Limits(NamedTuple):
    """What a request may ask for: tokens of prompt and answer together, choices in all, and tokens of an answer by default.

    `default_tokens` None means as many as fit.
    """

    context: int
    choices: int
    default_tokens: int | None


class Choice(NamedTuple):
    """One answer to one prompt; its place in the job is its index in the response."""

    prompt: Prompt
    params: SamplingParams


class Job(NamedTuple):
    """All that a request asks of the engine, and how it wants to hear of it. `created` is seconds since 1970.

    `model` is what the request calls it, `adapter` what the engine is told, empty for the model itself.
    """

    id: str
    created: int
    model: str
    prompts: tuple[Prompt, ...]
    choices: tuple[Choice, ...]
    include_usage: bool
    adapter: str = ""


def make_job(
    request: GenerationFields,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    adapter: str,
    kind: str,
    max_tokens: int | None,
    limits: Limits,
) -> Job:
    """Return the job for a request: `n` choices for every prompt, in the prompts' order.

    `params` are the request's own (`sampling`), `max_tokens` what it says about the length of an answer. Choice `i` of a prompt
    uses `seed + i`. Raises ApiError 400 for too many choices, and for prompts that leave no room for an answer.
    """
    total = len(prompts) * request.n
    if total > limits.choices:
        message = f"{len(prompts)} prompts with {request.n} choices are {total} answers; {limits.choices} are allowed"
        raise bad_request(message, "n", "invalid_value")
    choices = []
    for prompt in prompts:
        room = _room(len(prompt.ids), max_tokens, limits)
        for number in range(request.n):
            seed = None if request.seed is None else (request.seed + number) % _SEEDS
            choices.append(Choice(prompt, msgspec.structs.replace(params, max_tokens=room, seed=seed)))
    usage = bool(request.stream_options and request.stream_options.include_usage)
    name = f"{kind}-{secrets.token_hex(12)}"
    return Job(name, int(time.time()), request.model, tuple(prompts), tuple(choices), usage, adapter)


def sampling(request: GenerationFields, defaults: SamplingParams, logprobs: int | None) -> SamplingParams:
    """Return how a request samples; what it leaves out comes from `defaults`. Raises ApiError 400 for an empty stop string."""
    given = {name: getattr(request, name) for name in _SAMPLING}
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    if "" in stop:
        raise bad_request("a stop string is empty", "stop", "invalid_value")
    if request.stream_options is not None and not request.stream:
        raise bad_request("'stream_options' is for requests with 'stream': true", "stream_options", "invalid_value")
    return msgspec.structs.replace(
        defaults,
        **{name: value for name, value in given.items() if value is not None},
        stop=stop,
        stop_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=request.ignore_eos,
        logprobs=logprobs,
    )


def _room(prompt: int, max_tokens: int | None, limits: Limits) -> int:
    """Return how many tokens an answer may have."""
    left = limits.context - prompt
    if not prompt:
        raise bad_request("the prompt has no tokens", "prompt", "invalid_value")
    if left < 1 or (max_tokens or 1) > left:
        raise _too_long(prompt, max_tokens, limits.context)
    return max_tokens or min(left, limits.default_tokens or left)


def _too_long(prompt: int, max_tokens: int | None, context: int) -> ApiError:
    asked = f" and {max_tokens} for the answer, {prompt + max_tokens} together" if max_tokens else ""
    message = f"the longest context is {context} tokens; the request has {prompt} tokens in the prompt{asked}"
    hint = "shorten the prompt" if prompt >= context else f"ask for {context - prompt} tokens at most"
    return bad_request(f"{message}; {hint}", None, "context_length_exceeded")
