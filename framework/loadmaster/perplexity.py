"""How well a model predicts a text: the measure by which variants of one model are compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from loadmaster_hookspecs.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from loadmaster.engine import Engine

WINDOW: Final = 512
"""Tokens that are predicted from one another. Windows do not overlap, and the first token of each is not predicted."""


class Perplexity(msgspec.Struct, frozen=True, kw_only=True):
    """`value` is e to the mean negative log likelihood of the `tokens` that were predicted."""

    value: float
    tokens: int


def perplexity(engine: Engine, text: str, *, window: int = WINDOW) -> Perplexity:
    """Return the perplexity of a model on a text, in consecutive windows of `window` tokens.

    Raises UsageError for a text of fewer than two tokens.
    """
    ids = engine.tokenizer.encode(text)
    if len(ids) < 2:
        raise UsageError("LM-USAGE-TEXT", f"a text of {len(ids)} tokens has nothing to predict", hints=["give a longer one"])
    windows = [part for start in range(0, len(ids), window) if len(part := ids[start : start + window]) > 1]
    total = sum(_negative_log_likelihood(engine.logits(part), part) for part in windows)
    tokens = sum(len(part) - 1 for part in windows)
    return Perplexity(value=math.exp(total / tokens), tokens=tokens)


def _negative_log_likelihood(logits: npt.NDArray[np.float32], ids: list[int]) -> float:
    """Return the summed negative log likelihood of `ids[1:]` under float32 logits [tokens, vocabulary]."""
    import numpy as np

    scores = logits[:-1].astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    chosen = scores[np.arange(len(ids) - 1), ids[1:]]
    return float((np.log(np.exp(scores).sum(axis=1)) - chosen).sum())
