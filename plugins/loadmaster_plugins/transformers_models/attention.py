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

_MEANINGFUL: Final = ("head_mask",)


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
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention output [batch, tokens, query heads, head size].

    `query` is [batch, query heads, tokens, head size]; `key` and `value` have the rank's key-value heads; `s_aux` is one score
    per query head that takes its share of attention and gives nothing (an attention sink); `position_bias` is added to the scores. Inputs that change the result and are not implemented raise
    NotImplementedError instead of being left out.
    """
    for name in _MEANINGFUL:
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"attention input {name} of {type(module).__name__} is not supported")
    index = getattr(module, KV_INDEX, None)
    if index is not None:
        key, value = key.index_select(1, index), value.index_select(1, index)
    if softcap is not None or s_aux is not None or position_bias is not None:
        scores = query @ _repeated(key, query.shape[1]).transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
        scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
        scores = scores if position_bias is None else scores + position_bias
        weights = _weights(scores, attention_mask, s_aux)
        return (weights @ _repeated(value, query.shape[1])).transpose(1, 2).contiguous(), None
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


def _weights(scores: torch.Tensor, mask: torch.Tensor | None, sinks: torch.Tensor | None) -> torch.Tensor:
    """Return what every token takes of every other one: the softmax of masked scores, of which sinks get their share."""
    new, total = scores.shape[-2:]
    if mask is None:
        mask = torch.ones(new, total, dtype=torch.bool, device=scores.device).tril(total - new)
    masked = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        masked = torch.cat([masked, sinks.reshape(1, -1, 1, 1).expand(*masked.shape[:-1], 1)], dim=-1)
    return torch.softmax(masked, dim=-1, dtype=torch.float32).to(scores.dtype)[..., :total]


def _repeated(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return keys or values once per query head."""
    return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)
