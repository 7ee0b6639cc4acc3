"""Choosing the next token from logits: greedy, or sampled with temperature, top-k and top-p."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from loadmaster_engine.serve.messages import NO_TOKEN

if TYPE_CHECKING:
    import torch


COLDEST = 1e-6
"""Temperatures below this count as this: they are greedy all the same."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one request samples. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 leave all tokens in.

    Every request has its own random numbers from `seed`, so its tokens do not depend on the batch it runs in.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class Sampler:
    """Draws tokens for the rows of one batch."""

    def __init__(self, rows: list[Sampling]) -> None:
        import torch

        self._rows = rows
        self._generators = [torch.Generator().manual_seed(row.seed) for row in rows]

    def draw(self, logits: torch.Tensor) -> list[int]:
        """Return one token id per row of `logits`, float [rows, vocab], or NO_TOKEN."""
        logits = logits.float().cpu()
        greedy: list[int] = logits.argmax(dim=-1).tolist()
        drawable: list[bool] = logits.amax(dim=-1).isfinite().tolist()
        return [
            NO_TOKEN if not drawable[index] else token if row.temperature == 0 else self._sample(index, logits[index])
            for index, (row, token) in enumerate(zip(self._rows, greedy, strict=True))
        ]

    def _sample(self, index: int, logits: torch.Tensor) -> int:
        import torch

        probabilities = nucleus(logits, self._rows[index])
        return int(torch.multinomial(probabilities, 1, generator=self._generators[index]))


def nucleus(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the probabilities [vocab] that remain after temperature, top-k and top-p, in this order.

    Top-p keeps the most probable tokens until their sum reaches `top_p`, the one that crosses it included.
    """
    import torch

    # The largest becomes 0 first, so that no temperature makes it infinite.
    logits = (logits - logits.max()) / max(sampling.temperature, COLDEST)
    if 0 < sampling.top_k < logits.shape[-1]:
        threshold = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < threshold, float("-inf"))
    probabilities = torch.softmax(logits, dim=-1)
    if sampling.top_p < 1.0:
        ordered, order = probabilities.sort(descending=True)
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p
        probabilities = probabilities.scatter(0, order, ordered.masked_fill(outside, 0.0))
        probabilities = probabilities / probabilities.sum()
    return probabilities
