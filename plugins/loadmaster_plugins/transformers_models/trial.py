"""Trying lean layers: one run of the model in which every layer computes both ways, with a cache that only notes.

Ranks run a divided model together the one way only. The lean way each runs by itself, so that one that cannot keeps no other
waiting, and at the end they agree: a layer becomes lean on all ranks or on none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from loadmaster_hookspecs.agreeing import AGREE, Agree
from loadmaster_plugins.transformers_models.lean import LeanLayer
from loadmaster_plugins.transformers_models.paged import Binding
from loadmaster_plugins.transformers_models.replay import Differs, Replay, same
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


class Trial(NamedTuple):
    """One layer, its lean form, and what repeats its calls of modules with hooks."""

    layer: torch.nn.Module
    lean: LeanLayer
    replay: Replay


def try_layers(model: torch.nn.Module, binding: Binding, run: Callable[[], object]) -> int:
    """Make those layers lean that compute the same when lean, and return how many are. `run` runs a step of some tokens.

    All ranks do this at once.
    """
    layers = [layer for layer in model.modules() if LeanLayer.fits(layer) and "forward" not in vars(layer)]
    if not layers:
        return 0
    rotation = Rotation()
    trials = [Trial(layer, LeanLayer(layer, rotation), Replay(layer)) for layer in layers]
    alike: set[torch.nn.Module] = set()
    binding.cache = noted = Noted()
    for trial in trials:
        trial.layer.forward = partial(_both, trial, noted, alike)
    try:
        run()
    finally:
        binding.cache = None
        for layer in layers:
            vars(layer).pop("forward", None)
    votes = [layer in alike for layer in layers]
    agree: Agree | None = getattr(model, AGREE, None)
    agreed = votes if agree is None else agree(votes)
    for trial, lean in zip(trials, agreed, strict=True):
        if lean:
            trial.layer.forward = trial.lean
    return sum(agreed)


def _both(trial: Trial, noted: Noted, alike: set[torch.nn.Module], hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return the result of the layer's own code, and note whether the lean one agrees."""
    layer = trial.layer
    noted.calls.clear()
    with trial.replay.noting():
        wanted = type(layer).forward(layer, hidden, *args, **kwargs)
    own = noted.calls[:]
    angles = kwargs.get("position_embeddings")
    if not isinstance(angles, tuple) or angles[0].shape[-1] != layer.get_submodule("self_attn").head_dim:
        return wanted
    noted.calls.clear()
    try:
        with trial.replay.again():
            result = trial.lean(hidden, *args, **kwargs)
    except (RuntimeError, Differs):  # torch's, about shapes: norms over all heads together, for example
        return wanted
    if (
        isinstance(wanted, torch.Tensor)
        and same(wanted, result)
        and len(own) == len(noted.calls) == 1
        and _alike(own[0], noted.calls[0])
    ):
        alike.add(layer)
    return wanted


def _alike(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    forms = first[3], second[3]
    return (
        same(first[:3], second[:3])
        and forms[0].keys() == forms[1].keys()
        and all(same(forms[0][name], forms[1][name]) for name in forms[0])
    )
