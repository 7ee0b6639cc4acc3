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
        return output.add_(product(x).to(output.dtype))

    return LiveChange(change)


def merge(part: AdapterPart, tensors: Tensors, layer: BaseLayer) -> Mapping[str, MergeChange]:
    """Return the changes of a layer's weight and bias. `tensors` are float32."""
    if "A" not in tensors:
        return merge_parameters(part, tensors)
    delta = _delta(part, tensors)
    factor = magnitude_factor(part, tensors, layer) if "magnitude" in tensors else None

    def weight(start: int, stop: int, rows: torch.Tensor) -> torch.Tensor:
        changed = rows + delta(start, stop)
        if factor is None:
            return changed
        return changed * (factor if part.kind == "embedding" else factor[start:stop, None])

    changes: dict[str, MergeChange] = {"weight": weight}
    if "B_bias" in tensors:
        bias = tensors["B_bias"]
        changes["bias"] = lambda start, stop, rows: rows + part.scale * bias[start:stop]
    return changes


def magnitude_factor(part: AdapterPart, tensors: Tensors, layer: BaseLayer) -> torch.Tensor:
    """Return DoRA's factor of every output, the magnitude over the norm of its weights W + scale * B A, float32 [out].

    An output whose weights are zeros, as padding has, keeps the factor 0. Where ranks share the inputs the squares are summed
    over them.
    """
    magnitude, delta = tensors["magnitude"], _delta(part, tensors)
    embedding_rows = part.kind == "embedding"
    squares = torch.zeros_like(magnitude)
    count = tensors["A"].shape[1] if embedding_rows else len(squares)
    for start in range(0, count, ROWS):
        stop = min(start + ROWS, count)
        rows = (layer.weight(start, stop) + delta(start, stop)).square()
        if embedding_rows:
            squares += rows.sum(dim=0)
        else:
            squares[start:stop] = rows.sum(dim=1)
    norms = layer.total(squares).sqrt()
    return torch.where(norms > 0, magnitude / norms.clamp(min=torch.finfo(norms.dtype).tiny), 0)


def _delta(part: AdapterPart, tensors: Tensors) -> Callable[[int, int], torch.Tensor]:
    """Return what gives the change of some rows of the weight in float32: of a linear layer [out, in], else [in, out]."""
    a, b = tensors["A"].float(), tensors["B"].float()
    if part.kind == "embedding":
        return lambda start, stop: part.scale * (a[:, start:stop].T @ b.T)
    return lambda start, stop: part.scale * (b[start:stop] @ a)


def _product(part: AdapterPart, tensors: Tensors) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what gives scale * (B A x + bias) in float32. The scale is put on the few numbers between the factors."""
    a, b, scale = tensors["A"], tensors["B"], part.scale
    bias = scale * tensors["B_bias"] if "B_bias" in tensors else None
    return lambda x: linear(linear(x.float(), a).mul_(scale), b, bias)


def _live_dora(part: AdapterPart, tensors: Tensors, layer: BaseLayer) -> LiveChange:
    """Return the change under DoRA. The layer's bias is not scaled, so it is taken out and put back."""
    product, factor, module = _product(part, tensors), magnitude_factor(part, tensors, layer), layer.module

    def change(x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        bias = module._parameters.get("bias")
        plain = output.float() if bias is None else output.float() - bias.float()
        scaled = factor * (plain + product(x).float())
        return (scaled if bias is None else scaled + bias.float()).to(output.dtype)

    return LiveChange(change)


def _live_embedding(part: AdapterPart, tensors: Tensors, layer: BaseLayer) -> LiveChange:
    """Return the change of looked-up rows. Some embeddings multiply what they look up, and so the change as well."""
    table, b, scale = tensors["A"].T, tensors["B"], part.scale
    multiplier = getattr(layer.module, "embed_scale", None)
    factor = magnitude_factor(part, tensors, layer) if "magnitude" in tensors else None

    def change(ids: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        added = linear(embedding(ids, table), b) * scale
        if multiplier is not None:
            added = added * multiplier
        if factor is None:
            return output + added.to(output.dtype)
        return (factor * (output.float() + added.float())).to(output.dtype)

    return LiveChange(change)
