"""Decoder layers of the common form, computed over blocks with fewer calls and temporary tensors than transformers' own code.

Which layers have that form is found out by trial: `try_layers` runs the model once with both, and a layer becomes lean if it
gives attention the same bits and returns the same bits. Modules with hooks, which collectives and adapters attach, are called
as ever; where a layer's attention or feed-forward module has some itself, the layer runs its own code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from loadmaster_hookspecs.kv import KvCache
from loadmaster_hookspecs.products import TOGETHER
from loadmaster_plugins.transformers_models.attention import KV_INDEX
from loadmaster_plugins.transformers_models.paged import BINDING, Binding
from loadmaster_plugins.transformers_models.rotary import Rotation

TWO_NORMS: Final = frozenset({"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"})
FOUR_NORMS: Final = TWO_NORMS | {"pre_feedforward_layernorm", "post_feedforward_layernorm"}
PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
HEAD_NORMS: Final = ("q_norm", "k_norm")
GATED: Final = ("gate_proj", "up_proj", "down_proj", "act_fn")


class LeanLayer:
    """The forward function of one decoder layer. Takes what the layer takes, and runs the layer's own code outside of steps."""

    def __init__(self, layer: torch.nn.Module, rotation: Rotation) -> None:
        self._own: Callable[..., Any] = type(layer).forward.__get__(layer)
        parts = layer._modules
        self._attention, self._mlp = layer.get_submodule("self_attn"), layer.get_submodule("mlp")
        self._size: int = getattr(self._attention, "head_dim")  # noqa: B009 # torch types attributes as modules
        self._scale: float = getattr(self._attention, "scaling")  # noqa: B009
        self._binding: Binding = getattr(layer, BINDING)
        self._rotation = rotation
        self._before = parts["input_layernorm"], parts.get("pre_feedforward_layernorm", parts["post_attention_layernorm"])
        four = "pre_feedforward_layernorm" in parts
        self._after = (parts["post_attention_layernorm"], parts["post_feedforward_layernorm"]) if four else (None, None)
        # Limits of values, which a trial need not reach, are left to the module's own code.
        self._gated = set(self._mlp._modules) == set(GATED) and not any("limit" in name for name in vars(self._mlp))

    @staticmethod
    def fits(layer: torch.nn.Module) -> bool:
        """Return whether a layer has the modules of the common form, so that trying makes sense."""
        if frozenset(layer._modules) not in (TWO_NORMS, FOUR_NORMS):
            return False
        attention = layer.get_submodule("self_attn")
        if {*attention._modules} not in (set(PROJECTIONS), {*PROJECTIONS, *HEAD_NORMS}):
            return False
        # Clipping changes large values only, which need not come up in a trial.
        clips = getattr(getattr(attention, "config", None), "clip_qkv", None) is not None
        return not clips and all(hasattr(attention, name) for name in ("head_dim", "scaling"))

    def __call__(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return the layer's result for `hidden` [1, tokens, hidden size]."""
        cache, angles = self._binding.cache, kwargs.get("position_embeddings")
        if cache is None or args or angles is None or _changed(self._attention) or _changed(self._mlp):
            return self._own(hidden, *args, **kwargs)
        for norm, after, part in zip(self._before, self._after, (self._attend, self._feed), strict=True):
            result = part(_call(norm, hidden), cache, angles)
            hidden = hidden + (result if after is None else _call(after, result))
        return hidden

    def _attend(self, rows: torch.Tensor, cache: KvCache, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        parts: Any = self._attention._modules
        shape = (1, rows.shape[1], -1, self._size)
        first = [parts[name] for name in PROJECTIONS[:3]]
        joint = _together(first, rows)
        if joint is not None and "q_norm" not in parts:
            heads = joint.view(shape)
            kept = len(first[1].weight) // self._size
            turned, value = heads[:, :, :-kept], heads[:, :, -kept:]
            queries = turned.shape[2] - kept
        else:
            query, key, value = (_call(part, rows).view(shape) for part in first)
            if "q_norm" in parts:
                query, key = _call(parts["q_norm"], query), _call(parts["k_norm"], key)
            queries = query.shape[2]
            turned = torch.cat((query, key), 2)
        turned = self._rotation.turn(turned, angles).transpose(1, 2)
        output = cache.attend(
            turned[:, :queries],
            turned[:, queries:],
            value.transpose(1, 2),
            scale=self._scale,
            kv_index=getattr(self._attention, KV_INDEX, None),
        )
        return _call(parts["o_proj"], output.reshape(1, rows.shape[1], -1))

    def _feed(self, rows: torch.Tensor, _cache: KvCache, _angles: object) -> torch.Tensor:
        if not self._gated:
            result: torch.Tensor = self._mlp(rows)
            return result
        parts = self._mlp._modules
        first = [parts["gate_proj"], parts["up_proj"]]
        joint = _together(first, rows)
        gate, up = (_call(part, rows) for part in first) if joint is None else joint.chunk(2, -1)
        return _call(parts["down_proj"], _call(parts["act_fn"], gate) * up)


def _together(modules: list[Any], rows: torch.Tensor) -> torch.Tensor | None:
    """Return the results of all modules side by side, where they are multiplied at once and nobody has attached anything."""
    known = getattr(modules[0], TOGETHER, None)
    if known is None or len(known.modules) != len(modules):
        return None
    if any(one is not other or _hooked(one) for one, other in zip(modules, known.modules, strict=True)):
        return None
    result: torch.Tensor | None = known.product(rows)
    return result


def _call(module: Any, rows: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = module(rows) if _hooked(module) else module.forward(rows)
    return result


def _hooked(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _changed(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)
