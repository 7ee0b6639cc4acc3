"""Binding: every parameter of the model becomes a view of the arena, and nothing without storage is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from loadmaster_engine.load.arena import Arena
from loadmaster_engine.load.mapped import tensor_view
from loadmaster_engine.load.regions import Bytes
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.plan import Binding

if TYPE_CHECKING:
    import torch


def bind(module: torch.nn.Module, bindings: Sequence[Binding], arena: Arena, files: Mapping[int, Bytes]) -> None:
    """Replace every parameter and stored buffer of `module` by a view of the arena or of a mapped file of `files`.

    Aliases share their target's tensor.
    """
    import torch

    bound: dict[str, torch.Tensor] = {}
    for binding in bindings:
        owner, name = _owner(module, binding.parameter)
        if binding.alias_of:
            tensor = bound[binding.alias_of]
        elif binding.view is not None:
            tensor = tensor_view(files, binding, binding.view)
        else:
            tensor = arena.view(binding)
        if name in owner._buffers:
            owner._buffers[name] = tensor
        else:
            parameter = torch.nn.Parameter(tensor, requires_grad=False) if not binding.alias_of else tensor
            owner.register_parameter(name, cast(torch.nn.Parameter, parameter))
            tensor = parameter
        bound[binding.parameter] = tensor


def move_buffers(module: torch.nn.Module, device: str) -> None:
    """Move the computed buffers, and tensors that modules keep as attributes, to the device that parameters are on."""
    import torch

    for owner in module.modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None and buffer.device.type != "meta":
                owner._buffers[name] = buffer.to(device)
        for name, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor):
                setattr(owner, name, value.to(device))


def check_bound(module: torch.nn.Module, rank: int) -> None:
    """Raise IntegrityError LM-VERIFY-UNBOUND naming every parameter and buffer that still has no storage."""
    unbound = [name for name, tensor in module.named_parameters() if tensor.is_meta]
    unbound += [name for name, tensor in module.named_buffers() if tensor.is_meta]
    if unbound:
        raise IntegrityError(
            "LM-VERIFY-UNBOUND",
            f"{len(unbound)} tensors of the model have no storage after binding",
            where={"rank": rank, "tensor": ", ".join(unbound[:5])},
            why="the model's family computes them neither from the file nor from the configuration",
        )


def _owner(module: torch.nn.Module, dotted: str) -> tuple[torch.nn.Module, str]:
    path, _, name = dotted.rpartition(".")
    return module.get_submodule(path), name
