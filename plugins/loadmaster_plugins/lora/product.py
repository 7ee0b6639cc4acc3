"""The arithmetic, in the worker: peft's `lora.Linear`, `lora.Embedding` and DoRA on a rank's part of a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch.nn.functional import embedding, linear

from loadmaster_hookspecs.adapters import AdapterPart, BaseLayer, LiveChange, MergeChange
from loadmaster_plugins.lora.stacks import live_parameters, merge_parameters

ROWS: Final = 1024
"""Rows of a weight whose norms are computed at a time."""

Tensors = Mapping[str, torch.Tensor]


def live(part: AdapterPart, tensors: Tensors, layer: BaseLayer) -> LiveChange:
    """Return the change of a layer's result."""
    if "A" not in tensors:
        return live_parameters(part, tensors, layer)
    if part.kind == "embedding":
        return _live_embedding(part, tensors, layer)
    product = _product(part, tensors)
    if "magnitude" in tensors:
        return _live_dora(part, tensors, layer)

    def change(x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return output + product(x).to(output.dtype)

    return LiveChange(change)


def merge(part: AdapterPart, tensors: Tensors, layer: BaseLayer) -> Mapping[str, MergeChange]:
    """Return the changes of a layer's weight and bias. `tensors` are float32."""
    if "A" not in tensors:
        return merge_parameters(part, tensors)
    a, b, scale = tensors["A"], tensors["B"], part.scale
    changes: dict[str, MergeChange] = {}
    if part.kind == "embedding":
        changes["weight"] = lambda start, stop, rows: rows + scale * (a[:, start:stop].T @ b.T)
    elif "magnitude" in tensors:
        factor = magnitude_factor(part, tensors, layer).unsqueeze(1)
        changes["weight"] = lambda start, stop, rows: factor[start:stop] * (rows + scale * (b[start:stop] @ a))
    else:
        changes["weight"] = lambda start, stop, rows: rows + scale * (b[start:stop] @ a)
    if "B_bias" in tensors:
        bias = tensors["B_bias"]
        changes["bias"] = lambda start, stop, rows: rows + scale * bias[start:stop]
    return changes


def magnitude_factor(part: AdapterPart, tensors: Tensors, layer: BaseLayer) -> torch.Tensor:
    """Return DoRA's factor of every row, the magnitude over the norm of W + scale * B A, float32 [rows].

    A row of zeros, as padding has, keeps the factor 0. Where ranks share the columns the squares are summed over them.
    """
    a, b, magnitude = tensors["A"].float(), tensors["B"].float(), tensors["magnitude"]
    squares = torch.zeros_like(magnitude)
    for start in range(0, len(squares), ROWS):
        stop = min(start + ROWS, len(squares))
        squares[start:stop] = (layer.weight(start, stop) + part.scale * (b[start:stop] @ a)).square().sum(dim=1)
    norms = layer.total(squares).sqrt()
    return torch.where(norms > 0, magnitude / norms.clamp(min=torch.finfo(norms.dtype).tiny), 0)


def _product(part: AdapterPart, tensors: Tensors) -> Callable[[torch.Tensor], torch.Tensor]:
    a, b, scale, bias = tensors["A"], tensors["B"], part.scale, tensors.get("B_bias")
    return lambda x: linear(linear(x.to(a.dtype), a), b, bias) * scale


def _live_dora(part: AdapterPart, tensors: Tensors, layer: BaseLayer) -> LiveChange:
    """Return the change under DoRA. The layer's bias is not scaled, so it is taken out and put back."""
    product, factor = _product(part, tensors), magnitude_factor(part, tensors, layer)

    def change(x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        bias = layer.module._parameters.get("bias")
        plain = output.float() if bias is None else output.float() - bias.float()
        scaled = factor * (plain + product(x).float())
        return (scaled if bias is None else scaled + bias.float()).to(output.dtype)

    return LiveChange(change)


def _live_embedding(part: AdapterPart, tensors: Tensors, layer: BaseLayer) -> LiveChange:
    """Return the change of looked-up rows. Some embeddings multiply what they look up, and so the change as well."""
    table, b, scale = tensors["A"].T, tensors["B"], part.scale
    factor = getattr(layer.module, "embed_scale", None)

    def change(ids: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        added = linear(embedding(ids, table), b) * scale
        if factor is not None:
            added = added * factor
        return output + added.to(output.dtype)

    return LiveChange(change)
