"""How a rank enters its group: alone, with other threads of this process, or with other processes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from loadmaster_engine.run.groups import Distributed, Group, Meeting, Solo, Threads
from loadmaster_engine.run.rendezvous import IN_MEMORY, LOOPBACK, memory_address, open_store
from loadmaster_engine.run.shared_group import share_memory

if TYPE_CHECKING:
    from torch._C._distributed_c10d import FileStore, TCPStore

THREADS: Final = "threads"
"""The init method of ranks that are threads of one process; it becomes `threads:ID` once rank 0 has opened the meeting."""

_meetings: Final[WeakValueDictionary[str, Meeting]] = WeakValueDictionary()


class MeetingPoint:
    """One rank's way into the group. Rank 0 opens, then every rank joins by the method that opening gave."""

    def __init__(self, rank: int, world_size: int, device: str) -> None:
        self._rank = rank
        self._world_size = world_size
        self._device = device
        self._store: TCPStore | FileStore | None = None
        self._meeting: Meeting | None = None

    def open(self, method: str, environ: Mapping[str, str]) -> str:
        """Open the meeting point on rank 0 and return the method to join by; other ranks return `method`."""
        if self._rank != 0 or self._world_size == 1:
            return method
        if method == THREADS:
            name = f"{THREADS}:{uuid.uuid4()}"
            self._meeting = _meetings[name] = Meeting(self._world_size)
            return name
        if method == "auto":
            return memory_address()
        self._store = open_store(method, environ, self._rank, self._world_size)
        return method

    def join(self, method: str, environ: Mapping[str, str]) -> Group:
        """Join and return the group. Waits for the other ranks, within the rendezvous limit."""
        if self._world_size == 1:
            return Solo()
        if method.startswith(THREADS):
            return Threads(self._rank, _meetings[method])
        one_machine = method.startswith((IN_MEMORY, f"tcp://{LOOPBACK}:"))
        if one_machine:
            _stay_on_loopback()
        store = self._store or open_store(method, environ, self._rank, self._world_size)
        group = Distributed(store, self._rank, self._world_size, self._device)
        return share_memory(group, store) if one_machine and self._device == "cpu" else group


def _stay_on_loopback() -> None:
    """Make gloo bind the loopback interface: looking up the host's own name fails in many containers."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
