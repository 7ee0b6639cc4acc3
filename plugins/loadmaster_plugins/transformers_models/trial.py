"""Trying lean layers: one run of the model in which every layer computes both ways, with a cache that only notes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from loadmaster_plugins.transformers_models.lean import LeanLayer
from loadmaster_plugins.transformers_models.paged import Binding
from loadmaster_plugins.transformers_models.rotary import Rotation

TOKENS: Final = 7
"""Tokens of the trial."""


class Noted:
    """A cache that keeps nothing (`loadmaster_hookspecs.kv.KvCache`) and notes what attention is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]] = []

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **form: Any) -> torch.Tensor:
        """Return something made of queries, keys and values, of the shape of an output."""
        self.calls.append((query, key, value, {name: given for name, given in form.items() if given is not None}))
        return (query[..., :1] + key[:, :1, :, :1] + value[:, :1]).transpose(1, 2).contiguous()


def try_layers(model: torch.nn.Module, binding: Binding, run: Callable[[], object]) -> int:
    """Make those layers lean that compute the same when lean, and return how many are. `run` runs a step of some tokens."""
    tried = [layer for layer in model.modules() if LeanLayer.fits(layer) and "forward" not in vars(layer)]
    if not tried:
        return 0
    rotation = Rotation()
    agreed: dict[torch.nn.Module, LeanLayer] = {}
    binding.cache = noted = Noted()
    for layer in tried:
        layer.forward = partial(_both, layer, LeanLayer(layer, rotation), noted, agreed)
    try:
        run()
    finally:
        binding.cache = None
        for layer in tried:
            vars(layer).pop("forward", None)
    for layer, lean in agreed.items():
        layer.forward = lean
    return len(agreed)


def _both(
    layer: torch.nn.Module,
    lean: LeanLayer,
    noted: Noted,
    agreed: dict[torch.nn.Module, LeanLayer],
    hidden: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return the result of the layer's own code, and note whether the lean one agrees."""
    noted.calls.clear()
    wanted = type(layer).forward(layer, hidden, *args, **kwargs)
    own = noted.calls[:]
    angles = kwargs.get("position_embeddings")
    if not isinstance(angles, tuple) or angles[0].shape[-1] != layer.get_submodule("self_attn").head_dim:
        return wanted
    noted.calls.clear()
    try:
        result = lean(hidden, *args, **kwargs)
    except RuntimeError:  # torch's, about shapes: norms over all heads together, for example
        return wanted
    same = isinstance(wanted, torch.Tensor) and torch.equal(wanted, result) and len(own) == len(noted.calls) == 1
    if same and _alike(own[0], noted.calls[0]):
        agreed[layer] = lean
    return wanted


def _alike(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    tensors = all(torch.equal(one, other) for one, other in zip(first[:3], second[:3], strict=True))
    forms = first[3], second[3]
    return tensors and forms[0].keys() == forms[1].keys() and all(_same(forms[0][name], forms[1][name]) for name in forms[0])


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)
