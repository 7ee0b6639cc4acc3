"""An existing module as the arena: planned bytes go straight into the parameters it already has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from loadmaster_engine.load.regions import as_array
from loadmaster_hookspecs.dtypes import BY_TORCH_NAME
from loadmaster_hookspecs.errors import IntegrityError, UsageError
from loadmaster_hookspecs.plan import Binding, Region

if TYPE_CHECKING:
    import torch


class ModuleArena:
    """Stands for an arena whose bindings are the tensors of `module`. The module keeps its tensors; only values change.

    Raises IntegrityError LM-MODULE-MISMATCH, before anything is written, when the module's tensors are not exactly those that
    the bindings describe, and UsageError for tensors that cannot be written in place.
    """

    concurrent = True

    def __init__(self, module: torch.nn.Module, bindings: Sequence[Binding]) -> None:
        tensors = dict(module.state_dict(keep_vars=True))
        _compare(tensors, bindings)
        placed = sorted((b for b in bindings if not b.alias_of and b.nbytes), key=lambda binding: binding.offset)
        self._starts = [binding.offset for binding in placed]
        self._memory = [_host_bytes(binding.parameter, tensors[binding.parameter]) for binding in placed]
        self._tensors: dict[str, torch.Tensor] = {binding.parameter: tensors[binding.parameter] for binding in bindings}
        self.nbytes = sum(binding.nbytes for binding in placed)

    def fill(self, dest: Region, write: Callable[[memoryview, Region], None]) -> None:
        """Let `write` put the bytes of `dest` into the tensor that they belong to."""
        memory, local = self._locate(dest)
        write(memory, local)

    def zero(self, dest: Region) -> None:
        """Write zeros into the tensor that `dest` belongs to."""
        memory, local = self._locate(dest)
        as_array(memory, local).fill(0)

    def settle(self) -> None:
        """Do nothing: the module's memory was there before."""

    def release(self, start: int) -> None:
        """Do nothing: the memory is the module's."""

    def view(self, binding: Binding) -> torch.Tensor:
        """Return the module's own tensor."""
        return self._tensors[binding.parameter]

    def _locate(self, dest: Region) -> tuple[memoryview, Region]:
        index = bisect_right(self._starts, dest.offset) - 1
        return self._memory[index], Region(dest.offset - self._starts[index], dest.run, dest.steps)


def _compare(tensors: dict[str, torch.Tensor], bindings: Sequence[Binding]) -> None:
    wanted = {binding.parameter: binding for binding in bindings}
    problems = [f"{name} is in the module only" for name in tensors if name not in wanted]
    problems += [f"{name} is in the checkpoint's model only" for name in wanted if name not in tensors]
    for name in wanted.keys() & tensors.keys():
        tensor, binding = tensors[name], wanted[name]
        dtype = BY_TORCH_NAME[str(tensor.dtype).removeprefix("torch.")]
        if (tuple(tensor.shape), dtype) != (binding.shape, binding.dtype):
            problems.append(f"{name} is {dtype} {list(tensor.shape)}, the plan has {binding.dtype} {list(binding.shape)}")
    problems += _sharing(tensors, bindings)
    if problems:
        raise IntegrityError(
            "LM-MODULE-MISMATCH",
            f"the module does not match the checkpoint in {len(problems)} tensors",
            why="; ".join(problems[:5]),
            hints=["build the module from the checkpoint's own configuration"],
        )


def _sharing(tensors: dict[str, torch.Tensor], bindings: Sequence[Binding]) -> list[str]:
    """Return where module and plan differ about which tensors share storage: one of them would keep wrong values."""
    problems = []
    first: dict[int, str] = {}
    for binding in sorted(bindings, key=lambda each: bool(each.alias_of)):
        tensor = tensors.get(binding.parameter)
        if tensor is None or tensor.is_meta or not tensor.numel():
            continue
        holder = first.setdefault(tensor.data_ptr(), binding.parameter)
        if holder != (binding.alias_of or binding.parameter):
            wanted = f"shares {binding.alias_of}" if binding.alias_of else "has values of its own"
            problems.append(f"{binding.parameter} {wanted} in the checkpoint's model and not in the module")
    return problems


def _host_bytes(name: str, tensor: torch.Tensor) -> memoryview:
    import torch

    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise UsageError(
            "LM-MODULE-STORAGE",
            "only contiguous tensors in host memory can be filled in place",
            where={"parameter": name, "device": str(tensor.device)},
            hints=["load on the CPU, then move the module to its device"],
        )
    flat: memoryview = tensor.detach().view(-1).view(torch.uint8).numpy().data
    return flat
