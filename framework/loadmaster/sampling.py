"""How answers are sampled: what the request says wins, then the model's own defaults, which are announced once."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final

import msgspec

from loadmaster_engine.run.sampler import Sampling
from loadmaster_hookspecs.errors import UsageError
from loadmaster_hookspecs.formats import CheckpointIndex

GENERATION_FILE = "generation_config.json"

_NOT_APPLIED: Final[Mapping[str, object]] = {
    "repetition_penalty": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_eos_token_id": None,
}
"""Defaults of a model that change its answers and are not implemented, with the value that means nothing."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's files say about generation: sampling values, and the token ids that end an answer."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[int, ...] = ()
    notice: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks for. None leaves a value to the model's defaults; without a seed a random one is drawn."""

    max_tokens: int = 128
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None


def read_defaults(index: CheckpointIndex) -> Defaults:
    """Return the defaults in generation_config.json, and in config.json where that has no stop tokens."""
    generation = index.generation
    values = _sampling_values(generation)
    own = generation.get("eos_token_id")
    stop_file = GENERATION_FILE if own is not None else "config.json"
    stop = _ids(own if own is not None else index.config.get("eos_token_id"))
    parts = [f"{name}={value:g}" for name, value in values.items()]
    lines = [f"sampling defaults {', '.join(parts)} from {GENERATION_FILE}"] if parts else []
    if stop:
        lines.append(f"stop tokens {', '.join(map(str, stop))} from {stop_file}")
    if left_out := _left_out(generation):
        lines.append(f"not applied: {', '.join(left_out)} from {GENERATION_FILE}")
    return Defaults(**_typed(values), stop=stop, notice="; ".join(lines))


def resolve(request: Request, defaults: Defaults, row: int) -> Sampling:
    """Return how one row of a request samples. Raises UsageError for values outside their range."""
    _check(request)
    seed = secrets.randbits(48) if request.seed is None else int(request.seed) + row
    return Sampling(
        temperature=float(defaults.temperature if request.temperature is None else request.temperature),
        top_k=int(defaults.top_k if request.top_k is None else request.top_k),
        top_p=float(defaults.top_p if request.top_p is None else request.top_p),
        seed=seed,
    )


def _check(request: Request) -> None:
    ranges = {
        "max_tokens": isinstance(request.max_tokens, Integral) and request.max_tokens >= 1,
        "temperature": request.temperature is None or _usable("temperature", request.temperature),
        "top_k": request.top_k is None or _usable("top_k", request.top_k),
        "top_p": request.top_p is None or _usable("top_p", request.top_p),
        "seed": request.seed is None or (isinstance(request.seed, Integral) and abs(request.seed) < 1 << 62),
    }
    wrong = [name for name, valid in ranges.items() if not valid]
    if wrong:
        raise UsageError(
            "LM-USAGE-SAMPLING",
            f"sampling values out of range: {', '.join(f'{name}={getattr(request, name)}' for name in wrong)}",
            hints=[
                "max_tokens from 1, temperature from 0, top_k from 0 (all tokens), top_p above 0 and up to 1, seed below 2^62"
            ],
        )


def _usable(name: str, value: object) -> bool:
    """Return whether a sampling value is a number within its range."""
    number = float(value) if isinstance(value, Real) else math.nan
    if name == "top_p":
        return 0 < number <= 1
    return 0 <= number < math.inf and (name != "top_k" or number.is_integer())


def _sampling_values(generation: Mapping[str, Any]) -> dict[str, float]:
    """Return the sampling values that hold; a model that says `do_sample: false` wants the likeliest token."""
    if generation.get("do_sample") is False:
        return {}
    named = {name: generation.get(name) for name in ("temperature", "top_k", "top_p")}
    values = {name: float(value) for name, value in named.items() if isinstance(value, Real) and _usable(name, value)}
    if values or generation.get("do_sample") is True:
        values.setdefault("temperature", 1.0)
    return values


def _left_out(generation: Mapping[str, Any]) -> list[str]:
    """Return the defaults that would change answers but are not applied: not implemented, or out of range."""
    named = {name: generation.get(name) for name in ("temperature", "top_k", "top_p")}
    wrong = [f"{name}={value}" for name, value in named.items() if value is not None and not _usable(name, value)]
    missing = [
        f"{name}={generation[name]}"
        for name, neutral in _NOT_APPLIED.items()
        if generation.get(name) is not None and generation[name] != neutral
    ]
    return [*wrong, *missing]


def _typed(values: Mapping[str, float]) -> dict[str, Any]:
    return {name: int(value) if name == "top_k" else value for name, value in values.items()}


def _ids(value: object) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(item for item in value if isinstance(item, int))
    return (value,) if isinstance(value, int) else ()
