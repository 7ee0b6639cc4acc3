"""How fast tokens come after the first one: the time of a long answer less that of an answer of one token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

Generate = Callable[[int], Sequence[int]]
"""Answers the benchmark's prompt greedily with at most that many tokens, and returns them."""


def decode_rate(generate: Generate, count: int) -> tuple[float, list[int]]:
    """Return the tokens per second of `count` tokens after the first, and the answer they are part of.

    Something must have been generated before: the first answer of a process is slower. Raises ValueError when an answer ends
    early, because its steps cannot be told.
    """
    begin = time.perf_counter()
    generate(1)
    middle = time.perf_counter()
    answer = [*generate(count + 1)]
    end = time.perf_counter()
    if len(answer) != count + 1:
        raise ValueError(f"the answer has {len(answer)} tokens, not {count + 1}")
    # On a busy machine the single token may take longer than all others; then nothing can be said.
    seconds = max((end - middle) - (middle - begin), 1e-9)
    return count / seconds, answer
