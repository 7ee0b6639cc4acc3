"""The attention function that transformers' modelling code calls: it reads head counts from the tensors it is given.

A rank holds some of the query heads and the key-value heads they need, so the model-wide ratio between them, which
transformers keeps in the modules, does not hold on a rank.
"""

from __future__ import annotations

from typing import Any, Final

import torch

ATTENTION: Final = "loadmaster"
KV_INDEX: Final = "loadmaster_kv_index"
"""Attribute of an attention module: the local key-value head of each local query head, where the ratio is not uniform."""

_MEANINGFUL: Final = ("s_aux", "position_bias", "head_mask")


def register_attention() -> None:
    """Make the function known to transformers under its own name. Safe to call again."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention output [batch, tokens, query heads, head size].

    `query` is [batch, query heads, tokens, head size]; `key` and `value` have the rank's key-value heads. Inputs that change
    the result and are not implemented raise NotImplementedError instead of being left out.
    """
    for name in _MEANINGFUL:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"attention input {name} of {type(module).__name__} is not supported")
    index = getattr(module, KV_INDEX, None)
    if index is not None:
        key, value = key.index_select(1, index), value.index_select(1, index)
    if softcap is not None:
        return _capped(query, key, value, attention_mask, scaling, softcap).transpose(1, 2).contiguous(), None
    causal = attention_mask is None and query.shape[2] > 1 and bool(getattr(module, "is_causal", True))
    output = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
        is_causal=causal,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return output.transpose(1, 2).contiguous(), None


def _capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float,
) -> torch.Tensor:
    """Attention whose scores are bounded by `softcap * tanh(scores / softcap)` before the mask, as Gemma 2 defines it."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = torch.tanh(scores / softcap) * softcap
    new, total = scores.shape[-2:]
    if mask is None:
        mask = torch.ones(new, total, dtype=torch.bool, device=scores.device).tril(total - new)
    # Not -inf: rows of padding mask everything, and their not-a-number would reach real rows through the values.
    lowest = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return weights @ value
