"""One batch of sequences on one rank: left-padded prompts, a key-value cache, and steps that append one token per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loadmaster_hookspecs.models import CausalModel

if TYPE_CHECKING:
    import torch


class Batch:
    """The running state of a batch. Prompts are padded on the left, so that the last position of every row is real."""

    def __init__(self, model: CausalModel, prompts: Sequence[Sequence[int]], device: str) -> None:
        import torch

        self._model = model
        self._device = device
        self._cache = model.new_cache()
        width = max(len(prompt) for prompt in prompts)
        self._tokens = torch.zeros(len(prompts), width, dtype=torch.int64)
        self._mask = torch.zeros(len(prompts), width, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            self._tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            self._mask[row, width - len(prompt) :] = 1
        self._lengths = self._mask.sum(dim=1, keepdim=True)

    def prefill(self) -> torch.Tensor:
        """Run the prompts and return the logits [rows, vocab] that follow them."""
        positions = (self._mask.cumsum(dim=1) - 1).clamp(min=0)
        return self._forward(self._tokens, positions)

    def append(self, tokens: Sequence[int]) -> torch.Tensor:
        """Append one token to every row and return the logits [rows, vocab] that follow."""
        import torch

        new = torch.tensor(tokens).unsqueeze(1)
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        positions = self._lengths.clone()
        self._lengths += 1
        return self._forward(new, positions)

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        import torch

        with torch.inference_mode():
            logits = self._model.forward(
                tokens.to(self._device),
                self._mask.to(self._device),
                positions.to(self._device),
                self._cache,
                last_only=True,
            )
        return logits[:, -1]


def prefill_logits(model: CausalModel, tokens: Sequence[int], device: str) -> torch.Tensor:
    """Return the logits of every position of one sequence, float32 [tokens, vocab] on the CPU."""
    import torch

    ids = torch.tensor([list(tokens)], device=device)
    positions = torch.arange(len(tokens), device=device).unsqueeze(0)
    with torch.inference_mode():
        logits = model.forward(ids, torch.ones_like(ids), positions, None, last_only=False)
    return logits[0].float().cpu()
