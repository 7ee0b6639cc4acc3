"""The life cycle of adapters on a loaded model: one load at a time, whole or not at all, and named only once it is there."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from loadmaster.adapters.catalogue import Catalogue, Entry
from loadmaster.adapters.identity import content_digest
from loadmaster.adapters.info import AdapterInfo
from loadmaster.adapters.limits import AdapterLimits
from loadmaster.adapters.moving import Ask
from loadmaster.adapters.opening import open_named
from loadmaster.adapters.planning import AdapterPlanning
from loadmaster.adapters.residence import Residence, closing
from loadmaster_engine.collector import collector_paused
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.run.messages import PlanRequest
from loadmaster_hookspecs.errors import LoadmasterError, UsageError
from loadmaster_hookspecs.plan import AdapterPlan, LoadPlan

CLOSE_SECONDS: Final = 30.0
"""Seconds that closing waits for a load which is under way, and which stops at its next slice."""


class AdapterManager:
    """Loads on a thread of its own. All methods may be called from any thread.

    Calls for one name take effect in the order in which they were made, and an unload that is called while another one of the
    same name is under way is that one. `residence` is what lies on the ranks, which `ask` calls in a `turn`.
    """

    def __init__(
        self,
        host: PluginHost,
        plan: LoadPlan,
        limits: AdapterLimits,
        planning: AdapterPlanning,
        ask: Ask,
        turn: Callable[[], AbstractContextManager[None]],
        tell: Callable[[str], None],
    ) -> None:
        self._host = host
        self._limits = limits
        self._planning = planning
        self._live = plan.settings.adapter_mode == "live"
        self._catalogue = Catalogue(limits.budget(plan))
        self._numbers = itertools.count(1)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loadmaster-adapters")
        self._lock = threading.Lock()
        self._latest: dict[str, Future[AdapterInfo] | Future[int]] = {}
        self._unloads: dict[str, Future[int]] = {}
        self._running: Future[AdapterInfo] | None = None
        self.residence = Residence(host, self._catalogue, ask, turn, tell)
        for adapter in plan.adapters:
            self._take_in(adapter)

    @property
    def nbytes(self) -> int:
        """Bytes that the adapters take over all ranks, or took before the ranks gave everything back."""
        return sum(entry.nbytes for entry in self._catalogue.held())

    @property
    def reserved(self) -> int:
        """Bytes that adapters to come may take besides."""
        return max(0, self._catalogue.budget - self.nbytes)

    def infos(self) -> tuple[AdapterInfo, ...]:
        """Return the adapters that requests can name."""
        return self._catalogue.infos()

    def pin(self, name: str, *, pinned: bool) -> None:
        """Say whether an adapter may make room for others. Raises UsageError for an unknown name."""
        self._catalogue.keep(name, pinned=pinned)

    def load(self, name: str, path: str, *, pinned: bool = False) -> Future[AdapterInfo]:
        """Begin to load an adapter; the future has what is wrong with it, too. Raises ResourceError while closing."""
        with self._lock:
            if self.residence.closing:
                raise closing()
            future = self._running = self._thread.submit(self._load, name, path, pinned)
            self._latest[name] = future
        future.add_done_callback(partial(self._settled, name))
        return future

    def unload(self, name: str) -> Future[int]:
        """Begin to unload an adapter; the future has the bytes given back, or UsageError for an unknown name."""
        outcome: Future[int] = Future()
        with self._lock:
            latest = self._latest.get(name)
            if latest is not None and latest is self._unloads.get(name):
                return self._unloads[name]
            self._latest[name] = self._unloads[name] = outcome
        outcome.add_done_callback(partial(self._settled, name))
        if latest is None:
            self._unload(name, outcome)
        else:  # it takes effect once the load that was called before it is over
            latest.add_done_callback(lambda _: self._unload(name, outcome))
        return outcome

    @property
    def merged(self) -> bool:
        """Whether an adapter is merged into the weights."""
        return not self._live and bool(self.infos())

    def unmerged(self) -> None:
        """Note that the weights are the base's again: the merged adapter can be named no more."""
        for info in self.infos():
            self.residence.leave(info.name)

    def forget(self) -> None:
        """Note, on the thread that calls the ranks, that they have given everything back, live adapters too."""
        if self._live:
            self.residence.forget()

    def bring_back(self, ask: Ask) -> dict[int, str]:
        """Load live adapters again, as `Residence.bring_back` does; a merged one comes back with the weights."""
        return self.residence.bring_back(ask) if self._live else {}

    def plan_on(self, base: PlanRequest) -> None:
        """Plan adapters that come from now on as parts of other weights."""
        self._planning.plan_on(base)

    def rest(self) -> None:
        """End the planner until the next load."""
        self._planning.rest()

    def end_loads(self) -> None:
        """Stop a load that is under way at its next slice, and refuse others. Does not wait for it."""
        with self._lock:
            self.residence.closing = True

    def close(self) -> None:
        """End loads, and the planner. Safe to call twice."""
        self.end_loads()
        running = self._running
        self._thread.shutdown(wait=False)
        if running is not None:
            wait([running], CLOSE_SECONDS)
        self._planning.rest()

    def _take_in(self, adapter: AdapterPlan) -> None:
        """Note an adapter that was loaded with the model. Ranks number live ones from 1 in the plan's order."""
        entry = Entry(adapter, next(self._numbers), content_digest(self._host, adapter.source, adapter.files))
        if not self._live:
            entry.number, entry.resident = 0, False
        self._catalogue.publish(entry)

    def _load(self, name: str, path: str, pinned: bool) -> AdapterInfo:
        self._check_live()
        if self.residence.closing:
            raise closing()
        with collector_paused():  # walking over all that the process holds would keep steps waiting
            request = open_named(self._host, name, path)
        digest = content_digest(self._host, request.index.source, request.index.files)
        present = self._catalogue.get(name)
        if present is not None and present.digest == digest:
            return self._catalogue.keep(name, pinned=pinned or None).info()
        with collector_paused():
            plan = self._planning.plan(request)
        self._limits.check_rank(plan)
        entry = Entry(plan, next(self._numbers), digest, pinned=pinned)
        self.residence.arrive(entry)
        return entry.info()

    def _unload(self, name: str, outcome: Future[int]) -> None:
        try:
            self._check_live()
            closed = self.residence.leave(name)
        except LoadmasterError as error:
            outcome.set_exception(error)
        else:
            closed.add_done_callback(partial(_pass_on, outcome))

    def _settled(self, name: str, future: Future[Any]) -> None:
        with self._lock:
            if self._latest.get(name) is future:
                del self._latest[name]
            if self._unloads.get(name) is future:
                del self._unloads[name]

    def _check_live(self) -> None:
        if not self._live:
            raise UsageError(
                "LM-ADAPTER-MODE",
                "adapters cannot come and go: one may be merged into the weights of this engine",
                hints=["use live mode"],
            )


def _pass_on(outcome: Future[int], closed: Future[int]) -> None:
    error = closed.exception()
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(closed.result())
