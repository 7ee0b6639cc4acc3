"""The attention function that transformers' modelling code calls: it reads head counts from the tensors it is given.

A rank holds some of the query heads and the key-value heads they need, so the model-wide ratio between them, which
transformers keeps in the modules, does not hold on a rank.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from loadmaster_plugins.transformers_models.selected_keys import only_blocks, only_selected

ATTENTION: Final = "loadmaster"
ATTENTION_WITH_NUMBERS: Final = "loadmaster_float_mask"
"""The same function for models whose own code works on masks that are added to scores, not on masks of true and false."""

KV_INDEX: Final = "loadmaster_kv_index"
"""Attribute of an attention module: the local key-value head of each local query head, where the ratio is not uniform."""

HARMLESS: Final = frozenset(
    {
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "sliding_window",
        "use_cache",
    }
)
"""Inputs that say nothing that the mask does not say, or nothing about the result."""


def register_attention() -> None:
    """Make the function known to transformers under its own names. Safe to call again."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask, sdpa_mask

    for name, mask in ((ATTENTION, sdpa_mask), (ATTENTION_WITH_NUMBERS, eager_mask)):
        AttentionInterface.register(name, attention)
        AttentionMaskInterface.register(name, mask)


def attention_name(model: object) -> str:
    """Return the name under which a class of models should ask for attention."""
    return ATTENTION if getattr(model, "_supports_sdpa", True) else ATTENTION_WITH_NUMBERS


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    block_indices: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention output [batch, tokens, query heads, head size].

    `query` is [batch, query heads, tokens, head size]; `key` and `value` have the rank's key-value heads. A sink is a score
    that takes its share of attention and gives nothing: `s_aux` has one per query head, `sinks` one per head and token.
    `position_bias` is added to the scores. `indices` and `block_indices` select the keys, or blocks of keys, of every token.
    Any other input that might change the result raises NotImplementedError instead of being left out.
    """
    unknown = [name for name, given in kwargs.items() if given is not None and name not in HARMLESS]
    if unknown:
        raise NotImplementedError(f"attention input {unknown[0]} of {type(module).__name__} is not supported")
    if indices is not None:
        attention_mask = only_selected(attention_mask, indices, key.shape[2])
    if block_indices is not None:
        attention_mask = only_blocks(module, attention_mask, block_indices, query, key, kwargs["position_ids"])
    index = getattr(module, KV_INDEX, None)
    if index is not None:
        index = index.to(key.device)
        key, value = key.index_select(1, index), value.index_select(1, index)
    sinks = sinks if s_aux is None else s_aux.reshape(1, -1, 1, 1)
    if softcap is not None or sinks is not None or position_bias is not None:
        scores = query @ _repeated(key, query.shape[1]).transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
        scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
        scores = scores if position_bias is None else scores + position_bias
        weights = _weights(scores, attention_mask, sinks)
        return (weights @ _repeated(value, query.shape[1])).transpose(1, 2).contiguous(), None
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    output = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
        is_causal=causal and attention_mask is None and query.shape[2] > 1,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return output.transpose(1, 2).contiguous(), None


def _weights(scores: torch.Tensor, mask: torch.Tensor | None, sinks: torch.Tensor | None) -> torch.Tensor:
    """Return what every token takes of every other one: the softmax of masked scores, of which sinks get their share."""
    new, total = scores.shape[-2:]
    if mask is None:
        mask = torch.ones(new, total, dtype=torch.bool, device=scores.device).tril(total - new)
    # Not -inf: rows of padding mask everything, and their not-a-number would reach real rows through the values.
    lowest = torch.finfo(scores.dtype).min
    masked = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        masked = torch.cat([masked, sinks.expand(*masked.shape[:-1], 1)], dim=-1)
    return torch.softmax(masked, dim=-1, dtype=torch.float32).to(scores.dtype)[..., :total]


def _repeated(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return keys or values once per query head."""
    return tensor.repeat_interleave(heads // tensor.shape[1], dim=1)
