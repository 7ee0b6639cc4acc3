"""What everyone who serves is asked: the same prompts, as token ids, and greedy answers of a fixed number of tokens."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

Prompts = list[list[int]]
Serve = Callable[[Prompts, int], list[list[int]]]
"""Answers all prompts at once, each with so many tokens whatever they are, and returns the answers."""

LOWEST, HIGHEST = 100, 1000
"""Token ids of prompts: every model has these, and none of them is special."""

PROMPT = 128
"""Tokens of a prompt where throughput is measured."""


class WrongCount(Exception):
    """Answers have other lengths than asked for."""


def parser() -> argparse.ArgumentParser:
    """Return the options that every script has."""
    made = argparse.ArgumentParser()
    made.add_argument("model", type=Path)
    made.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32], help="requests at once")
    made.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    made.add_argument("--first", type=int, nargs="+", default=[128, 512], help="prompts whose first token is timed")
    made.add_argument("--repeats", type=int, default=1, help="how often each figure is measured in this process")
    return made


def measure(serve: Serve, options: argparse.Namespace) -> tuple[dict[str, float], list[int]]:
    """Return medians over the repeats, and the first token of every answer to the most requests.

    `rate_N` is tokens per second over N requests at once, their prompts included; `first_N` the seconds until the only token of
    an answer to N tokens. A round that does not count comes before: libraries prepare for sizes when they first see them.
    """
    for count in options.batches:
        serve(prompts(count, PROMPT, "warm"), 4)
    for length in options.first:
        serve(prompts(1, length, "warm"), 1)
    found: dict[str, list[float]] = {}
    firsts: list[int] = []
    for repeat in range(options.repeats):
        for count in options.batches:
            seconds, answers = timed(serve, prompts(count, PROMPT, repeat), options.answer)
            found.setdefault(f"rate_{count}", []).append(count * options.answer / seconds)
            firsts = firsts if repeat else [answer[0] for answer in answers]
        for length in options.first:
            found.setdefault(f"first_{length}", []).append(timed(serve, prompts(1, length, repeat), 1)[0])
    return {name: median(values) for name, values in found.items()}, firsts


def prompts(count: int, length: int, repeat: object) -> Prompts:
    """Return prompts that differ from their first tokens on, also from those of other repeats: no prefix helps anyone."""
    numbers = random.Random(f"{count} {length} {repeat}")
    return [[numbers.randrange(LOWEST, HIGHEST) for _ in range(length)] for _ in range(count)]


def timed(serve: Serve, asked: Prompts, tokens: int) -> tuple[float, Sequence[list[int]]]:
    """Return seconds and answers. Raises WrongCount when somebody answered with more or fewer tokens."""
    begin = time.perf_counter()
    answers = serve(asked, tokens)
    seconds = time.perf_counter() - begin
    if [len(answer) for answer in answers] != [tokens] * len(asked):
        raise WrongCount(f"answers have {[len(answer) for answer in answers]} tokens, not {tokens} each")
    return seconds, answers
