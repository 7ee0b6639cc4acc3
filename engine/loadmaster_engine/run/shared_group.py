"""Collectives of ranks on one machine through memory that they share, instead of sockets.

A step of a divided model makes two small sums per layer. Each takes a socket-based library about a millisecond, most of it
waking threads up; here a rank copies its tensor into its own slot, raises its own counter, and reads the others' slots when
their counters have come as far.

Slots are doubled and used in turn. A rank writes into a slot for round `n + 2` only after all counters have reached `n + 1`,
and a rank raises its counter to `n + 1` only after it has read everything of round `n`, so nothing is overwritten unread.
"""

from __future__ import annotations

import mmap
import os
import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from loadmaster_engine.run.groups import COLLECTIVE_TIMEOUT, Distributed
from loadmaster_hookspecs.errors import WorkerError

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

SLOT_BYTES: Final = 4 << 20
"""Bytes that a rank hands over in one round. Larger sums take several rounds; pages are taken when they are first used."""

LINE: Final = 64
"""Bytes between two counters, so that each has a cache line of its own."""

ORDERED: Final = frozenset({"x86_64", "AMD64"})
"""Machines on which stores are seen by others in the order in which they were made, without fences."""

HOT_POLLS: Final = 200
PATIENT_SECONDS: Final = 0.002
"""A wait looks `HOT_POLLS` times, then lets other processes run between two looks, and sleeps between them after this time."""

_KEY: Final = "loadmaster/shared-memory"


class SharedMemory:
    """Ranks of one machine (`loadmaster_engine.run.groups.Group`). Owns the mapping; sums are taken in rank order."""

    def __init__(self, group: Distributed, memory: mmap.mmap) -> None:
        import torch

        self.rank = group.rank
        self.world_size = group.world_size
        self._group = group
        self._memory = memory
        self._counters = memoryview(memory)[: self.world_size * LINE].cast("q")
        slots = torch.frombuffer(
            memory, dtype=torch.uint8, offset=self.world_size * LINE, count=2 * self.world_size * SLOT_BYTES
        )
        self._slots = slots.view(2, self.world_size, SLOT_BYTES)
        self._round = 0
        self._closed = False

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks as a new tensor; every rank gets the same bits."""
        import torch

        flat = tensor.reshape(-1)
        total = torch.empty_like(flat)
        size = SLOT_BYTES // flat.element_size()
        for begin in range(0, flat.numel(), size):
            part = flat[begin : begin + size]
            slots = self._exchange(part, [part.numel()] * self.world_size)
            torch.add(slots[0], slots[1], out=total[begin : begin + size])
            for slot in slots[2:]:
                total[begin : begin + size] += slot
        return total.view(tensor.shape)

    def concat(self, tensor: torch.Tensor, parts: Sequence[int]) -> torch.Tensor:
        """Return the joined tensor. What does not fit into a slot goes through the library."""
        import torch

        rows = tensor.shape[:-1]
        count = rows.numel()
        if count * max(parts) * tensor.element_size() > SLOT_BYTES:
            return self._group.concat(tensor, parts)
        slots = self._exchange(tensor.reshape(-1), [count * size for size in parts])
        return torch.cat([slot.view(*rows, size) for slot, size in zip(slots, parts, strict=True)], dim=-1)

    def close(self) -> None:
        """Leave the group."""
        self._closed = True
        self._group.close()

    def _exchange(self, own: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Hand over a flat tensor and return those of all ranks, which have `sizes` elements; valid until the next call."""
        slots = self._slots[self._round % 2]
        self._round += 1
        views = [slot[: size * own.element_size()].view(own.dtype) for slot, size in zip(slots, sizes, strict=True)]
        views[self.rank].copy_(own)
        self._counters[self.rank * (LINE // 8)] = self._round
        for rank in range(self.world_size):
            self._wait(rank)
        return views

    def _wait(self, rank: int) -> None:
        counters, place, goal = self._counters, rank * (LINE // 8), self._round
        for _ in range(HOT_POLLS):
            if counters[place] >= goal:
                return
        begin = time.monotonic()
        while counters[place] < goal:
            waited = time.monotonic() - begin
            if self._closed or waited > COLLECTIVE_TIMEOUT:
                raise WorkerError(
                    "LM-GROUP-BROKEN",
                    "another rank left the collective",
                    where={"rank": self.rank, "missing": rank},
                    why=f"it did not arrive within {COLLECTIVE_TIMEOUT:.0f} s, or this rank was told to leave",
                )
            if waited < PATIENT_SECONDS:
                os.sched_yield()
            else:
                time.sleep(0.0001)


def share_memory(group: Distributed, store: Store) -> Distributed | SharedMemory:
    """Return collectives through shared memory for ranks of one machine, or the group itself where they cannot share.

    Rank 0 makes the memory and tells the others through the store where it is; it goes when the last rank ends. All ranks
    decide alike: when one cannot map it, none uses it.
    """
    import torch
    import torch.distributed as dist

    if platform.machine() not in ORDERED:
        return group
    size = group.world_size * (LINE + 2 * SLOT_BYTES)
    descriptor = _opened(group.rank, size, store)
    memory = _mapped(descriptor, size)
    mapped = torch.tensor(int(memory is not None))
    dist.all_reduce(mapped, op=dist.ReduceOp.MIN)
    if descriptor >= 0:  # only now, because others open it by rank 0's descriptor
        os.close(descriptor)
    return SharedMemory(group, memory) if memory is not None and mapped else group


def _opened(rank: int, size: int, store: Store) -> int:
    """Return a descriptor of the memory, or -1 where it cannot be had."""
    try:
        if rank:
            return os.open(store.get(_KEY).decode(), os.O_RDWR | os.O_CLOEXEC)
        descriptor = os.memfd_create("loadmaster-collectives", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size)
    except OSError:
        descriptor = -1
    if not rank:
        store.set(_KEY, f"/proc/{os.getpid()}/fd/{descriptor}")
    return descriptor


def _mapped(descriptor: int, size: int) -> mmap.mmap | None:
    try:
        return mmap.mmap(descriptor, size) if descriptor >= 0 else None
    except OSError:
        return None
