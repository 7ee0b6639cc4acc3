"""Sizes, names and figures of the benchmark of serving, as goals and tables use them."""

from __future__ import annotations

from typing import Final

SERVING_SIZES: Final = ("serve", "tiny-serve")
"""`serve`: the demo's model on one rank and a synthetic one of 0.5 GB on two; `tiny-serve`: the tiny checkpoint for both."""

BATCHES: Final = (1, 8, 32)
PROMPTS: Final = (128, 512)

INLINE: Final = "loadmaster-tp1"
SINGLE: Final = "loadmaster-tp1-1-thread"
WORKER: Final = "loadmaster-tp1-worker"
PLAIN: Final = "loadmaster-tp1-plain-matrices"
TWO: Final = "loadmaster-tp2"
VLLM: Final = "vllm-tp1-1-thread"
VLLM_ALL: Final = "vllm-tp1"
VLLM_TWO: Final = "vllm-tp2"
TRANSFORMERS: Final = "transformers-generate-batch"

PAIRS: Final = ((SINGLE, VLLM), (INLINE, VLLM_ALL), (TWO, VLLM_TWO))
"""Contestants with as many threads each."""


def rate_name(batch: int) -> str:
    """Return the name of the tokens per second with so many requests at once."""
    return f"rate_{batch}"


def first_name(prompt: int) -> str:
    """Return the name of the seconds to the first token after a prompt of so many tokens."""
    return f"first_{prompt}"
