"""Rotary embedding of queries and keys at once, in half the operations of the usual formula, with the same bits."""

from __future__ import annotations

import torch

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, [1, tokens, head size] each, whose second half repeats the first."""


class Rotation:
    """Keeps what all layers of a step need of their angles: layers that are given the same tensors share it."""

    def __init__(self) -> None:
        self._given: Angles | None = None
        self._cos = self._sin = torch.empty(0)

    def turn(self, heads: torch.Tensor, angles: Angles) -> torch.Tensor:
        """Return `heads` [1, tokens, heads, head size], each turned by its token's angles."""
        if angles is not self._given:
            cos, sin = angles
            half = sin.shape[-1] // 2
            # The usual formula negates half of what is turned; negating the sines instead is exact, and done once.
            self._sin = torch.cat((-sin[..., :half], sin[..., half:]), -1).unsqueeze(2)
            self._cos = cos.unsqueeze(2)
            self._given = angles
        first, second = heads.chunk(2, -1)
        return torch.cat((second, first), -1).mul_(self._sin).add_(heads * self._cos)
