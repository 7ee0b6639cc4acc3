"""How answers are sampled: what the request says wins, then the model's own defaults, which are announced once."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from loadmaster_engine.run.sampler import Sampling
from loadmaster_hookspecs.errors import UsageError
from loadmaster_hookspecs.formats import CheckpointIndex

GENERATION_FILE = "generation_config.json"


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
    stop_file = GENERATION_FILE if generation.get("eos_token_id") is not None else "config.json"
    stop = _ids(generation.get("eos_token_id", index.config.get("eos_token_id")))
    parts = [f"{name}={value:g}" for name, value in values.items()]
    lines = [f"sampling defaults {', '.join(parts)} from {GENERATION_FILE}"] if parts else []
    if stop:
        lines.append(f"stop tokens {', '.join(map(str, stop))} from {stop_file}")
    return Defaults(**_typed(values), stop=stop, notice="; ".join(lines))


def resolve(request: Request, defaults: Defaults, row: int) -> Sampling:
    """Return how one row of a request samples. Raises UsageError for values outside their range."""
    _check(request)
    seed = secrets.randbits(48) if request.seed is None else request.seed + row
    return Sampling(
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        top_k=defaults.top_k if request.top_k is None else request.top_k,
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        seed=seed,
    )


def _check(request: Request) -> None:
    ranges = {
        "max_tokens": request.max_tokens >= 1,
        "temperature": request.temperature is None or request.temperature >= 0,
        "top_k": request.top_k is None or request.top_k >= 0,
        "top_p": request.top_p is None or 0 < request.top_p <= 1,
    }
    wrong = [name for name, valid in ranges.items() if not valid]
    if wrong:
        raise UsageError(
            "LM-USAGE-SAMPLING",
            f"sampling values out of range: {', '.join(f'{name}={getattr(request, name)}' for name in wrong)}",
            hints=["max_tokens from 1, temperature from 0, top_k from 0 (all tokens), top_p above 0 and up to 1"],
        )


def _sampling_values(generation: Mapping[str, Any]) -> dict[str, float]:
    """Return the sampling values that hold; a model that says `do_sample: false` wants the likeliest token."""
    if generation.get("do_sample") is False:
        return {}
    named = {name: generation.get(name) for name in ("temperature", "top_k", "top_p")}
    values = {name: float(value) for name, value in named.items() if isinstance(value, int | float)}
    if values or generation.get("do_sample") is True:
        values.setdefault("temperature", 1.0)
    return values


def _typed(values: Mapping[str, float]) -> dict[str, Any]:
    return {name: int(value) if name == "top_k" else value for name, value in values.items()}


def _ids(value: object) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(item for item in value if isinstance(item, int))
    return (value,) if isinstance(value, int) else ()
