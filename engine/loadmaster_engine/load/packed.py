"""What takes the place of a linear layer, or of a stack of matrices, whose weights are not plain numbers.

The tensors are parameters like any other: the kernel of loading binds them, and what the plan says of them is what they take.
What they mean is known to the plugins alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import torch

from loadmaster_engine.load.segments import open_matrix
from loadmaster_engine.plan.kernels import AT_ONCE, facts_of
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.dtypes import TORCH_NAMES
from loadmaster_hookspecs.errors import WorkerError
from loadmaster_hookspecs.quantization import Matrix, PackedMatrix

if TYPE_CHECKING:
    from loadmaster_hookspecs.quantization import MatrixFacts


COLUMNS: Final = 512
"""Columns of a rearranged matrix that are found out at a time."""


class PackedLinear(torch.nn.Module):
    """A linear layer over a quantised matrix: float [..., in] to float [..., out], with a bias if the plan has one."""

    def __init__(self, host: PluginHost, part: PackedMatrix, facts: MatrixFacts) -> None:
        super().__init__()
        self.in_features, self.out_features = part.columns, part.rows
        self._host, self._part, self._facts = host, part, facts
        self._product: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._matrix: Matrix | None = None

    def prepare(self) -> None:
        """Let the kernel take what it needs, once all tensors are filled; the staged ones are gone afterwards."""
        tensors = {name: parameter for name, parameter in self._parameters.items() if parameter is not None and name != "bias"}
        matrix = open_matrix(self._host, self._part, tensors)
        kernel = self._host.kernel(self._part.kernel)
        with self._host.attributed(kernel, f"prepare of kernel {kernel.name} for {self._part.path}"):
            self._product = kernel.prepare(matrix, tensors, self._facts)
            held = kernel.layouts(self._part.layouts, self._facts)
        if not any(layout.staged or layout.scratched for layout in held):
            self._matrix = matrix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product, plus the bias."""
        result = self._multiply(x)
        bias = self._parameters.get("bias")
        return result if bias is None else result + bias.to(result.dtype)

    def weights(self) -> Callable[[int, int], torch.Tensor]:
        """Return what gives rows of the weights that the product multiplies with, as float32 [rows, in].

        Of a matrix that the kernel has rearranged all of them are found out at once, from products with unit vectors: whoever
        holds what is returned holds them, in the model's type.
        """
        dtype: torch.dtype = getattr(torch, TORCH_NAMES[self._facts.dtype])
        matrix = self._matrix
        if matrix is not None:
            return lambda start, stop: matrix.weight(start, stop).to(dtype).float()
        device = next(self.parameters()).device
        whole = torch.empty(self.out_features, self.in_features, dtype=dtype, device=device)
        for start in range(0, self.in_features, COLUMNS):
            units = torch.zeros(min(COLUMNS, self.in_features - start), self.in_features, dtype=dtype, device=device)
            units.diagonal(start).fill_(1)
            whole[:, start : start + len(units)] = self._multiply(units).T
        return lambda start, stop: whole[start:stop].float()

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        if self._product is None:
            raise WorkerError("LM-SERVICE-ORDER", "a quantised layer was used before its kernel was prepared")
        return self._product(x)


class PackedStack(torch.nn.Module):
    """A stack of quantised matrices: `stack[i]` is matrix `i` as floats [out, in], made when it is asked for.

    Modelling code that goes through its experts one by one needs one of them at a time, so no more is ever in memory.
    """

    def __init__(self, host: PluginHost, part: PackedMatrix, dtype: str) -> None:
        super().__init__()
        self.shape = torch.Size((part.count, part.rows, part.columns))
        self.dtype: torch.dtype = getattr(torch, TORCH_NAMES[dtype])
        self._host, self._part = host, part
        self._matrices: list[Matrix] = []

    def prepare(self) -> None:
        """Open every matrix of the stack over its part of the tensors."""
        tensors = {name: parameter for name, parameter in self._parameters.items() if parameter is not None}
        self._matrices = [
            open_matrix(self._host, self._part, {name: tensor[index] for name, tensor in tensors.items()})
            for index in range(self._part.count)
        ]

    def __getitem__(self, index: int | torch.Tensor) -> torch.Tensor:
        """Return one matrix in the model's element type."""
        return self._matrices[int(index)].weight(0, self._part.rows).to(self.dtype)

    def __len__(self) -> int:
        """Return the number of matrices."""
        return self._part.count


def install(host: PluginHost, model: torch.nn.Module, parts: Sequence[PackedMatrix], device: str, dtype: str) -> None:
    """Put a packed module in the place of every linear layer and parameter that the plan has a quantised matrix for."""
    for part in parts:
        parent, _, name = part.path.rpartition(".")
        owner = model.get_submodule(parent)
        packed = PackedStack(host, part, dtype) if part.count else PackedLinear(host, part, facts_of(part, device, dtype))
        owner._parameters.pop(name, None)
        owner.add_module(name, packed)


def prepare(model: torch.nn.Module) -> None:
    """Prepare every packed module of the model, several at once where torch uses threads. Its tensors must be bound and filled.

    Each of them gets one thread: preparing is many small operations, which are not worth dividing. The first module is prepared
    alone, so that what a kernel loads once is there for the others. Raises what a kernel raises, when all threads have ended.
    """
    modules = list(packed_modules(model))
    before = torch.get_num_threads()
    threads = min(AT_ONCE, before)
    for module in modules[:1] if threads > 1 else modules:
        module.prepare()
    if threads > 1 and len(modules) > 1:
        try:
            with ThreadPoolExecutor(threads, "prepare", torch.set_num_threads, (1,)) as pool:
                for done in [pool.submit(module.prepare) for module in modules[1:]]:
                    done.result()
        finally:
            # The number is one of each thread, but new threads begin with what was set last by any of them.
            torch.set_num_threads(before)


def drop_staged(model: torch.nn.Module, names: Sequence[str]) -> None:
    """Remove parameters whose memory is about to be given back."""
    for dotted in names:
        path, _, name = dotted.rpartition(".")
        del model.get_submodule(path)._parameters[name]


def packed_modules(model: torch.nn.Module) -> Iterator[PackedLinear | PackedStack]:
    """Yield the packed modules of a model."""
    yield from (module for module in model.modules() if isinstance(module, PackedLinear | PackedStack))
