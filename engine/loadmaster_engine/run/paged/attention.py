"""Attention of packed sequences over blocks of keys and values.

No keys and values are copied here for query heads that share them: torch's kernel is told how many share a head, and what it
does not get that way (masks of chunks, caps on scores, sinks) is computed with these heads as that many rows of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from loadmaster_engine.run.paged.arena import KvArena
from loadmaster_engine.run.paged.layout import Chunk, Decodes, PackedStep

if TYPE_CHECKING:
    import torch


class Form(NamedTuple):
    """What a layer does to its scores."""

    scale: float
    softcap: float | None
    sinks: torch.Tensor | None


class StepCache:
    """The cache of one step (`loadmaster_hookspecs.kv.KvCache`): counts the layers as their attention comes by."""

    def __init__(self, arena: KvArena, step: PackedStep) -> None:
        self._arena = arena
        self._step = step
        self._layer = 0

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        kv_index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Keep new keys and values and return the attention output [1, tokens, query heads, value size]."""
        keys, values = self._arena.layers[self._layer]
        window = self._arena.layout.layers[self._layer].window
        self._layer += 1
        keys.index_copy_(0, self._step.slots, key[0].transpose(0, 1))
        values.index_copy_(0, self._step.slots, value[0].transpose(0, 1))
        reads = self._step.reads(window)
        form = Form(scale, softcap, sinks)
        index = None if kv_index is None else kv_index.to(query.device)
        rows = query[0].transpose(0, 1)
        if len(reads.decodes) == 1 and not reads.chunks:
            return self._decode(rows, keys, values, reads.decodes[0], form, index).unsqueeze(0)
        output = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])
        for decodes in reads.decodes:
            output[decodes.rows] = self._decode(rows[decodes.rows], keys, values, decodes, form, index)
        for chunk in reads.chunks:
            part = slice(chunk.begin, chunk.end)
            seen_keys, seen_values = (
                _chosen(new[:, :, part] if chunk.blocks is None else self._gather(kept, chunk.blocks, 1, chunk.keys), index)
                for new, kept in ((key, keys), (value, values))
            )
            output[part] = _attend_chunk(query[:, :, part], seen_keys, seen_values, chunk, form)
        return output.unsqueeze(0)

    def _decode(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        decodes: Decodes,
        form: Form,
        index: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return [sequences, query heads, value size] for `query` [sequences, query heads, key size]."""
        import torch

        count, heads, width = query.shape
        key, value = (_chosen(self._read(kept, decodes, count), index) for kept in (keys, values))
        kv_heads = key.shape[1]
        if form.softcap is None and form.sinks is None:
            # One row per query head: torch's kernel takes these a sixth faster than several rows per key-value head.
            output = torch.nn.functional.scaled_dot_product_attention(
                query.unsqueeze(2), key, value, attn_mask=decodes.mask, scale=form.scale, enable_gqa=heads != kv_heads
            )
            return output.squeeze(2)
        grouped = query.reshape(count, kv_heads, heads // kv_heads, width)
        sinks = None if form.sinks is None else form.sinks.view(1, kv_heads, -1, 1)
        return _weigh(grouped, key, value, decodes.mask, form, sinks).reshape(count, heads, -1)

    def _read(self, tensor: torch.Tensor, decodes: Decodes, sequences: int) -> torch.Tensor:
        """Return [sequences, heads, keys, size] of one layer, a view where the keys of a single sequence lie in order."""
        if decodes.begin is None:
            return self._gather(tensor, decodes.blocks, sequences, decodes.keys)
        return tensor[decodes.begin : decodes.begin + decodes.keys].transpose(0, 1).unsqueeze(0)

    def _gather(self, tensor: torch.Tensor, blocks: torch.Tensor, sequences: int, keys: int) -> torch.Tensor:
        """Return [sequences, heads, keys, size] out of the blocks of one layer."""
        size = self._arena.block_size
        whole = tensor.view(-1, size * tensor.shape[1] * tensor.shape[2]).index_select(0, blocks)
        return whole.view(sequences, -1, *tensor.shape[1:])[:, :keys].transpose(1, 2)


def _attend_chunk(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, chunk: Chunk, form: Form) -> torch.Tensor:
    """Return [tokens, query heads, value size] for `query` [1, query heads, tokens, key size]."""
    import torch

    _, heads, count, width = query.shape
    kv_heads = key.shape[1]
    mask = chunk.mask
    if mask is None and form.softcap is None and form.sinks is None:
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=form.scale, enable_gqa=heads != kv_heads
        )
        return output[0].transpose(0, 1)
    if mask is None:
        mask = torch.full((count, count), float("-inf"), dtype=query.dtype, device=query.device).triu(1)
    group = heads // kv_heads
    grouped = query.reshape(1, kv_heads, group * count, width)
    sinks = None if form.sinks is None else form.sinks.view(1, kv_heads, group, 1).repeat_interleave(count, dim=2)
    output = _weigh(grouped, key, value, mask.repeat(group, 1), form, sinks)
    return output.reshape(heads, count, -1).transpose(0, 1)


def _weigh(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    form: Form,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Return softmax(scores) @ value, with caps on scores and sinks where the layer has them."""
    import torch

    if form.softcap is None and sinks is None:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=form.scale)
    scores = query @ key.transpose(2, 3) * form.scale
    scores = scores if form.softcap is None else torch.tanh(scores / form.softcap) * form.softcap
    scores = scores if mask is None else scores + mask
    total = scores.shape[-1]
    if sinks is not None:
        scores = torch.cat([scores, sinks.expand(*scores.shape[:-1], 1)], dim=-1)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)[..., :total] @ value


def _chosen(tensor: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
    """Return keys or values once per query head where the ratio between them is not uniform."""
    return tensor if index is None else tensor.index_select(1, index)
