"""Buffers that no file holds: they get the value that transformers' own initialisation computes for them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from transformers import PreTrainedModel

from loadmaster_hookspecs.errors import PlanError


def compute_buffers(model: PreTrainedModel) -> None:
    """Give every buffer that no file holds its storage and its value; everything else stays on the meta device.

    Most modules initialise their own buffers. Where some are left, every module is asked, because a model may initialise those
    of its parts. Raises PlanError LM-MODEL-BUFFER for one that nobody initialises.
    """
    stored = set(model.state_dict())
    owners: list[str] = []
    for path, module in model.named_modules():
        names = [name for name, _ in module.named_buffers(recurse=False) if f"{path}.{name}" not in stored]
        for name in names:
            buffer = torch.empty_like(module.get_buffer(name), device="cpu")
            module.register_buffer(name, buffer.fill_(torch.nan) if buffer.is_floating_point() else buffer, persistent=False)
        if names:
            owners.append(path)
    _initialise(model, owners)
    if _without_value(model):
        _initialise(model, [path for path, _ in model.named_modules()])
    if left := _without_value(model):
        raise PlanError(
            "LM-MODEL-BUFFER",
            f"{type(model).__name__} has a buffer that no file holds and no code computes",
            where={"buffer": left[0]},
        )


def _initialise(model: PreTrainedModel, paths: Iterable[str]) -> None:
    """Let the innermost transformers model around each module initialise it. Parameters on the meta device stay as they are."""
    inner = [(path, module) for path, module in model.named_modules() if isinstance(module, PreTrainedModel)]
    with torch.no_grad():
        for path in paths:
            owner = next(module for start, module in reversed(inner) if not start or f"{path}.".startswith(f"{start}."))
            owner._init_weights(model.get_submodule(path))


def _without_value(model: PreTrainedModel) -> list[str]:
    return [name for name, buffer in model.named_buffers() if not buffer.is_meta and bool(buffer.isnan().any())]
