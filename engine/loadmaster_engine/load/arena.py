"""The memory that parameters live in: one allocation per rank, exactly the plan's size, never moved."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from mmap import MADV_DONTNEED
from typing import TYPE_CHECKING, Protocol

from loadmaster_engine.load.pages import Prefault, anonymous
from loadmaster_engine.load.regions import as_array
from loadmaster_hookspecs.dtypes import TORCH_NAMES, itemsize
from loadmaster_hookspecs.errors import ResourceError, UsageError
from loadmaster_hookspecs.plan import Binding, Region

if TYPE_CHECKING:
    import torch

STAGING_BYTES = 32 << 20
"""Bytes of host memory through which a device arena is filled."""


class Arena(Protocol):
    """Memory of one rank. Tensors from `view` keep it alive."""

    nbytes: int
    concurrent: bool
    """Whether several threads may fill different regions at the same time."""

    def fill(self, dest: Region, write: Callable[[memoryview, Region], None]) -> None:
        """Have `write` produce the bytes of `dest`: it is given host memory, and where `dest` lies in it."""
        ...

    def zero(self, dest: Region) -> None:
        """Make the bytes of `dest` zero."""
        ...

    def settle(self) -> None:
        """Take note that everything is filled."""
        ...

    def release(self, start: int) -> None:
        """Give back the memory from byte `start`, the begin of a page, to the end. Nothing may use it any more."""
        ...

    def view(self, binding: Binding) -> torch.Tensor:
        """Return the tensor that a binding describes. It shares the arena's storage."""
        ...


def reserve(nbytes: int, device: str, rank: int) -> Arena:
    """Reserve `nbytes` bytes on `device` for a rank. Raises ResourceError LM-MEMORY-ARENA when there is not enough."""
    try:
        return HostArena(nbytes) if device == "cpu" else DeviceArena(nbytes, device)
    except (OSError, MemoryError, RuntimeError) as error:
        raise ResourceError(
            "LM-MEMORY-ARENA",
            f"cannot reserve {nbytes / 1e9:.2f} GB for the weights",
            where={"rank": rank, "device": device},
            why=str(error),
            hints=["use more ranks (--tp), a narrower --dtype, or a machine with more memory"],
        ) from error


def check_device(device: str, rank: int) -> None:
    """Raise UsageError LM-USAGE-DEVICE when this machine has no such device, before anything else is asked of it."""
    if device == "cpu":
        return
    import torch

    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (torch.device(device).index or 0) >= present:
        raise UsageError(
            "LM-USAGE-DEVICE",
            f"there is no device {device} here",
            where={"rank": rank},
            why=f"torch {torch.__version__} sees {present} CUDA devices",
            hints=["use --device cpu", "fewer ranks need fewer devices: each rank takes one"],
        )


class HostArena:
    """Anonymous memory of the process. A thread makes its pages ready from the start on, unless it is small."""

    concurrent = True

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory = anonymous(nbytes)
        self._bytes = memoryview(self._memory)
        self._prefault = Prefault(self._memory)

    def settle(self) -> None:
        """End the thread that makes pages ready: what it has not reached was written by then, or is never written."""
        self._prefault.stop()

    def release(self, start: int) -> None:
        """Return the pages to the operating system; the addresses stay reserved."""
        if start < self.nbytes:
            self._memory.madvise(MADV_DONTNEED, start, len(self._memory) - start)

    def fill(self, dest: Region, write: Callable[[memoryview, Region], None]) -> None:
        """Let `write` put the bytes where they belong: nothing is staged."""
        write(self._bytes, dest)

    def zero(self, dest: Region) -> None:
        """Write zeros, so that a plan can also be replayed into an arena that was used before."""
        as_array(self._bytes, dest).fill(0)

    def view(self, binding: Binding) -> torch.Tensor:
        """Return a tensor over the arena's own memory."""
        import torch

        dtype = getattr(torch, TORCH_NAMES[binding.dtype])
        if prod(binding.shape) == 0:
            return torch.empty(binding.shape, dtype=dtype)
        count = binding.nbytes // itemsize(binding.dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=binding.offset).view(binding.shape)


class DeviceArena:
    """Memory of a device, filled through a bounded buffer in host memory that is page-locked where the device allows it."""

    concurrent = False

    def __init__(self, nbytes: int, device: str) -> None:
        import torch

        self.nbytes = nbytes
        self._memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self._staging = torch.empty(
            min(STAGING_BYTES, max(nbytes, 1)), dtype=torch.uint8, pin_memory=self._memory.device.type == "cuda"
        )

    def fill(self, dest: Region, write: Callable[[memoryview, Region], None]) -> None:
        """Let `write` produce the whole range that `dest` spans in host memory, then copy it to the device.

        Strided destinations keep what lies between their runs: the range is fetched first.
        """
        import torch

        span = dest.end - dest.offset
        staging = self._staging if span <= self._staging.numel() else torch.empty(span, dtype=torch.uint8)
        target = self._memory[dest.offset : dest.end]
        if not dest.contiguous:
            staging[:span].copy_(target)
        write(staging.numpy().data, Region(0, dest.run, dest.steps))
        target.copy_(staging[:span])

    def settle(self) -> None:
        """Give the buffer in host memory back."""
        self._staging = self._staging.new_empty(0)

    def release(self, start: int) -> None:
        """Do nothing: a device's allocator gives back whole allocations only."""

    def zero(self, dest: Region) -> None:
        """Write zeros on the device."""
        shape = (*(count for count, _ in dest.steps), dest.run)
        strides = (*(stride for _, stride in dest.steps), 1)
        self._memory.as_strided(shape, strides, dest.offset).zero_()

    def view(self, binding: Binding) -> torch.Tensor:
        """Return a tensor over the arena's own memory on the device."""
        import torch

        part = self._memory[binding.offset : binding.offset + binding.nbytes]
        return part.view(getattr(torch, TORCH_NAMES[binding.dtype])).view(binding.shape)
