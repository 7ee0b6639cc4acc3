"""Which adapters there are: by name, with who uses them, who must stay, and who makes room first. Moves nothing itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from loadmaster.adapters.info import AdapterInfo
from loadmaster.adapters.limits import total_bytes
from loadmaster_hookspecs.errors import ResourceError, UsageError
from loadmaster_hookspecs.plan import AdapterPlan


class Entry:
    """An adapter on the ranks. `number` is what rows name it by, `closed` has the bytes it gave back once it is gone.

    A `resident` one lies in the ranks' memory. A `retired` one can be named no more, and goes when its last use ends.
    """

    def __init__(self, plan: AdapterPlan, number: int, digest: str, *, pinned: bool = False) -> None:
        self.plan = plan
        self.number = number
        self.digest = digest
        self.nbytes = total_bytes([plan])
        self.pinned = pinned
        self.uses = 0
        self.used_at = 0
        self.retired = False
        self.resident = True
        self.closed: Future[int] = Future()

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.plan.name

    def info(self) -> AdapterInfo:
        """Return what users are told."""
        return AdapterInfo(
            name=self.name,
            path=self.plan.source,
            kind=self.plan.kind,
            digest=self.digest,
            summary=self.plan.summary,
            nbytes=self.nbytes,
            pinned=self.pinned,
            using=self.uses,
        )


class Catalogue:
    """Used from any thread: every call is one step. Entries that are retired count until they are dropped."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._by_name: dict[str, Entry] = {}
        self._leaving: list[Entry] = []
        self._clock = 0

    def get(self, name: str) -> Entry | None:
        """Return the adapter that requests can call so, or None."""
        return self._by_name.get(name)

    def infos(self) -> tuple[AdapterInfo, ...]:
        """Return the adapters that requests can name, in the order in which they were loaded."""
        with self._lock:
            return tuple(entry.info() for entry in self._by_name.values())

    def held(self) -> tuple[Entry, ...]:
        """Return all adapters that have not been dropped."""
        with self._lock:
            return (*self._by_name.values(), *self._leaving)

    def publish(self, entry: Entry) -> Entry | None:
        """Let requests name an adapter, pinned if the one that had the name was. Returns that one if it is to be closed now."""
        with self._lock:
            before = self._by_name.pop(entry.name, None)
            entry.pinned = entry.pinned or (before is not None and before.pinned)
            self._by_name[entry.name] = entry
            self._touch(entry)
            return before if before is not None and self._retire(before) else None

    def use(self, name: str) -> Entry:
        """Hold an adapter for a request. Raises UsageError LM-USAGE-ADAPTER for an unknown name."""
        with self._lock:
            entry = self._known(name)
            entry.uses += 1
            self._touch(entry)
            return entry

    def release(self, entry: Entry) -> bool:
        """Give one hold back and return whether the adapter is to be closed now."""
        with self._lock:
            entry.uses -= 1
            return entry.retired and not entry.uses

    def keep(self, name: str, *, pinned: bool | None = None) -> Entry:
        """Count an adapter as used just now, and pin it or not. Raises UsageError for an unknown name."""
        with self._lock:
            entry = self._known(name)
            self._touch(entry)
            entry.pinned = entry.pinned if pinned is None else pinned
            return entry

    def retire(self, name: str) -> tuple[Entry, bool]:
        """Let no more requests name an adapter. Returns it, and whether it is to be closed now. Raises UsageError."""
        with self._lock:
            entry = self._known(name)
            del self._by_name[name]
            return entry, self._retire(entry)

    def make_room(self, name: str, nbytes: int) -> Sequence[Entry]:
        """Retire as many adapters as it takes for another one, used longest ago first, and return them: they are to be closed.

        Pinned ones and those in use stay. Raises ResourceError LM-ADAPTER-BUDGET when that is not enough, and retires none.
        """
        with self._lock:
            taken = sum(entry.nbytes for entry in (*self._by_name.values(), *self._leaving))
            free = [entry for entry in self._by_name.values() if not entry.pinned and not entry.uses]
            chosen = []
            for entry in sorted(free, key=lambda entry: entry.used_at):
                if taken + nbytes <= self.budget:
                    break
                chosen.append(entry)
                taken -= entry.nbytes
            if taken + nbytes > self.budget:
                raise self._full(name, nbytes)
            for entry in chosen:
                del self._by_name[entry.name]
                self._retire(entry)
            return chosen

    def drop(self, entry: Entry) -> None:
        """Forget a retired adapter: its bytes are given back."""
        with self._lock:
            self._leaving.remove(entry)

    def _retire(self, entry: Entry) -> bool:
        entry.retired = True
        self._leaving.append(entry)
        return not entry.uses

    def _touch(self, entry: Entry) -> None:
        self._clock += 1
        entry.used_at = self._clock

    def _known(self, name: str) -> Entry:
        if name not in self._by_name:
            why = f"loaded: {', '.join(self._by_name) or 'none'}"
            raise UsageError("LM-USAGE-ADAPTER", f"no adapter is called {name!r}", why=why)
        return self._by_name[name]

    def _full(self, name: str, nbytes: int) -> ResourceError:
        held = (*self._by_name.values(), *self._leaving)
        kept = [f"{entry.name} {entry.nbytes} bytes, {_reason(entry)}" for entry in held if entry.pinned or entry.uses]
        return ResourceError(
            "LM-ADAPTER-BUDGET",
            f"there is no room for the adapter: it takes {nbytes} of {self.budget} bytes",
            where={"adapter": name},
            why=f"cannot make room: {'; '.join(kept)}" if kept else "it is larger than all room for adapters",
            hints=["set adapter_bytes to more", *(["unload one, or take a pin away"] if kept else [])],
        )


def _reason(entry: Entry) -> str:
    used = f"used by {entry.uses} requests" if entry.uses else ""
    return ", ".join(filter(None, ("pinned" if entry.pinned else "", used)))
