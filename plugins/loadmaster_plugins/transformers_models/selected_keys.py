"""Attention to some keys only: masks from the keys, or blocks of keys, that an indexer has chosen for every token."""

from __future__ import annotations

from typing import Any

import torch


def only_selected(mask: torch.Tensor | None, indices: torch.Tensor, keys: int) -> torch.Tensor:
    """Return a mask that leaves the chosen keys of `mask`; `indices` is [batch, tokens, chosen], `keys` how many there are."""
    chosen = torch.zeros(*indices.shape[:-1], keys, dtype=torch.bool, device=indices.device)
    chosen = chosen.scatter(-1, indices.long(), value=True).unsqueeze(1)
    if mask is None:
        return chosen
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)


def only_blocks(
    module: torch.nn.Module,
    mask: torch.Tensor | None,
    blocks: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Return a mask that leaves the chosen blocks, as the module's own indexer makes it.

    Raises NotImplementedError for an attention module without such an indexer.
    """
    build: Any = getattr(getattr(module, "indexer", None), "build_block_mask", None)
    if build is None:
        raise NotImplementedError(f"attention input block_indices of {type(module).__name__} is not supported")
    made: torch.Tensor = build(blocks, mask, key.shape[2], query.dtype, query.device, positions)
    return made
