"""What the tests of kernels share: how a kernel is used as the engine uses it, and how its memory is watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from affine_matrices import Case, stored_layouts
from loadmaster_hookspecs.dtypes import TORCH_NAMES
from loadmaster_hookspecs.quantization import MatrixKernel

Product = Callable[[torch.Tensor], torch.Tensor]


def torch_dtype(name: str) -> torch.dtype:
    found = getattr(torch, TORCH_NAMES[name])
    assert isinstance(found, torch.dtype)
    return found


def arena_tensors(kernel: MatrixKernel, case: Case) -> dict[str, torch.Tensor]:
    """Return the case's tensors and those that the kernel computes, as yet full of ones."""
    tensors = dict(case.tensors)
    facts = case.facts
    sizes = {"out": facts.rows, "in": facts.columns, "pair": 2, "one": 1}
    for layout in kernel.layouts(stored_layouts(case), facts):
        if layout.computed:
            shape = [dim.extent(sizes[dim.axis]) for dim in layout.dims]
            tensors[layout.name] = torch.ones(shape, dtype=torch_dtype(layout.dtype))
    return tensors


def prepared(kernel: MatrixKernel, case: Case) -> Product:
    """Prepare the kernel, then overwrite all that it said it would not use again."""
    tensors = arena_tensors(kernel, case)
    product = kernel.prepare(case.matrix, tensors, case.facts)
    for layout in kernel.layouts(stored_layouts(case), case.facts):
        if layout.staged:
            tensors[layout.name].fill_(77)
    return product


class LargestAllocation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the bytes of the largest storage that an operation returned and that none of its arguments had."""

    nbytes: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in given:
                self.nbytes = max(self.nbytes, leaf.untyped_storage().nbytes())
        return result


def largest_allocation(run: Callable[[], object]) -> int:
    """Return the bytes of the largest tensor that `run` makes, be it for a moment."""
    seen = LargestAllocation()  # type: ignore[no-untyped-call]
    with seen:
        run()
    return seen.nbytes
