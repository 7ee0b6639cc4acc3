"""Collectives between the ranks of one model, in three settings: alone, as threads of one process, as processes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from loadmaster_hookspecs.errors import WorkerError

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

COLLECTIVE_TIMEOUT = 300.0
"""Seconds that a rank waits for the others in one collective before it gives up."""


class Group(Protocol):
    """The ranks that hold the parts of one model. Every rank calls the same methods in the same order."""

    rank: int
    world_size: int

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elementwise sum over all ranks; every rank gets the same bits. May overwrite `tensor`."""
        ...

    def concat(self, tensor: torch.Tensor, parts: Sequence[int]) -> torch.Tensor:
        """Return the ranks' tensors joined along the last dimension; `parts` gives each rank's size in it."""
        ...

    def close(self) -> None:
        """Leave the group. Ranks that wait for this one get an error."""
        ...


class Solo:
    """A single rank: collectives return their input."""

    rank = 0
    world_size = 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return tensor

    def concat(self, tensor: torch.Tensor, parts: Sequence[int]) -> torch.Tensor:
        """Return the tensor."""
        return tensor

    def close(self) -> None:
        """Do nothing."""


class Meeting:
    """Where the threads of one process meet: a barrier, and one slot per rank."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=COLLECTIVE_TIMEOUT)
        self.slots: list[torch.Tensor | None] = [None] * world_size


class Threads:
    """Ranks that are threads of one process. Sums are taken in rank order, so every rank gets the same bits."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = rank
        self.world_size = len(meeting.slots)
        self._meeting = meeting

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks as a new tensor."""
        first, *others = self._exchange(tensor)
        total = first.clone()
        for other in others:
            total += other
        self._wait()
        return total

    def concat(self, tensor: torch.Tensor, parts: Sequence[int]) -> torch.Tensor:
        """Return the joined tensor as a new one."""
        import torch

        joined = torch.cat(self._exchange(tensor), dim=-1)
        self._wait()
        return joined

    def close(self) -> None:
        """Break the barrier: ranks that wait in it get an error at once."""
        self._meeting.barrier.abort()

    def _exchange(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self._meeting.slots[self.rank] = tensor
        self._wait()
        return [slot for slot in self._meeting.slots if slot is not None]

    def _wait(self) -> None:
        try:
            self._meeting.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise WorkerError(
                "LM-GROUP-BROKEN",
                "another rank left the collective",
                where={"rank": self.rank},
                why=f"a rank failed, or did not arrive within {COLLECTIVE_TIMEOUT:.0f} s",
            ) from error


class Distributed:
    """Ranks that are processes, joined by torch.distributed."""

    def __init__(self, store: Store, rank: int, world_size: int, device: str) -> None:
        import torch.distributed as dist

        self.rank = rank
        self.world_size = world_size
        dist.init_process_group(
            "nccl" if device.startswith("cuda") else "gloo",
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=COLLECTIVE_TIMEOUT),
        )

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return `tensor` after adding all ranks' values into it."""
        import torch.distributed as dist

        tensor = tensor.contiguous()
        dist.all_reduce(tensor)
        return tensor

    def concat(self, tensor: torch.Tensor, parts: Sequence[int]) -> torch.Tensor:
        """Return the joined tensor. Parts of different size are padded to the largest on the way."""
        import torch
        import torch.distributed as dist

        widest = max(parts)
        padded = torch.nn.functional.pad(tensor, (0, widest - tensor.shape[-1])).contiguous()
        received = [torch.empty_like(padded) for _ in parts]
        dist.all_gather(received, padded)
        return torch.cat([piece[..., :size] for piece, size in zip(received, parts, strict=True)], dim=-1)

    def close(self) -> None:
        """Destroy the process group of this process."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
