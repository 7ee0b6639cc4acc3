"""The life cycle of adapters on a loaded model: one load at a time, whole or not at all, and named only once it is there."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final

from loadmaster.adapters.catalogue import Catalogue, Entry
from loadmaster.adapters.identity import content_digest
from loadmaster.adapters.info import AdapterInfo
from loadmaster.adapters.limits import AdapterLimits
from loadmaster.adapters.moving import Answer, Ask, bring_in, take_away
from loadmaster.adapters.opening import open_named
from loadmaster.adapters.planning import AdapterPlanning
from loadmaster.adapters.reach import AtOnce, Reach
from loadmaster.adapters.uses import BASE, Use
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.run.messages import encode
from loadmaster_engine.serve.adapter_messages import AdapterClose
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError, ResourceError, UsageError
from loadmaster_hookspecs.plan import LoadPlan

CALL_SECONDS: Final = 600.0
"""Seconds that a call to the ranks may wait for its turn and take."""

CLOSE_SECONDS: Final = 30.0
"""Seconds that closing waits for a load which is under way, and which stops at its next slice."""


class AdapterManager:
    """Loads on a thread of its own. All methods may be called from any thread.

    Calls for one name take effect in the order in which they were made, and an unload that is called while another one of the
    same name is under way is that one. `ask` reaches the ranks, at the moments that `reach` finds.
    """

    def __init__(
        self,
        host: PluginHost,
        plan: LoadPlan,
        limits: AdapterLimits,
        planning: AdapterPlanning,
        ask: Ask,
        tell: Callable[[str], None],
    ) -> None:
        self.reach: Reach = AtOnce()
        self._ask = ask
        self._host = host
        self._limits = limits
        self._planning = planning
        self._tell = tell
        self._live = plan.settings.adapter_mode == "live"
        self._catalogue = Catalogue(limits.budget(plan))
        self._numbers = itertools.count(1)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loadmaster-adapters")
        self._lock = threading.Lock()
        self._latest: dict[str, Future[AdapterInfo] | Future[int]] = {}
        self._unloads: dict[str, Future[int]] = {}
        self._running: Future[AdapterInfo] | None = None
        self._arriving: Entry | None = None
        self._closing = False

    @property
    def nbytes(self) -> int:
        """Bytes that the adapters take over all ranks."""
        return sum(entry.nbytes for entry in self._catalogue.held() if entry.resident)

    @property
    def forgotten(self) -> int:
        """Bytes that adapters take over all ranks once they are brought back."""
        return sum(entry.nbytes for entry in self._catalogue.held() if not entry.resident)

    @property
    def reserved(self) -> int:
        """Bytes that adapters to come may take besides."""
        return max(0, self._catalogue.budget - self.nbytes)

    def begin(self, plan: LoadPlan) -> None:
        """Take in the adapters that were loaded with the model. Ranks number live ones from 1 in the plan's order."""
        for adapter in plan.adapters:
            number = next(self._numbers) if self._live else 0
            self._catalogue.publish(Entry(adapter, number, content_digest(self._host, adapter.source, adapter.files)))

    def infos(self) -> tuple[AdapterInfo, ...]:
        """Return the adapters that requests can name."""
        return self._catalogue.infos()

    def pin(self, name: str, *, pinned: bool) -> None:
        """Say whether an adapter may make room for others. Raises UsageError for an unknown name."""
        self._catalogue.keep(name, pinned=pinned)

    def use(self, name: str) -> Use:
        """Hold an adapter for a request; an empty name stands for the base. Raises UsageError for an unknown name."""
        if not name:
            return BASE
        entry = self._catalogue.use(name)
        return Use(entry.number, entry.digest if entry.number else "", lambda: self._release(entry))

    def load(self, name: str, path: str, *, pinned: bool = False) -> Future[AdapterInfo]:
        """Begin to load an adapter; the future has what is wrong with it, too."""
        with self._lock:
            if self._closing:
                raise _closing()
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
            self._catalogue.retire(info.name)

    def forget(self) -> None:
        """Note that the ranks have given everything back, adapters too."""
        arriving = () if self._arriving is None else (self._arriving,)
        for entry in (*self._catalogue.held(), *arriving):
            entry.resident = not self._live

    def bring_back(self, ask: Ask) -> dict[int, str]:
        """Load all adapters again, under their numbers, onto ranks that have forgotten them.

        Those whose files have changed or gone are dropped: returns why, by their numbers.
        """
        lost = {}
        for entry in self._catalogue.held():
            if entry.resident:
                continue
            try:
                self._bring_in(ask, entry)
                entry.resident = True
            except LoadmasterError as error:
                lost[entry.number] = str(error)
                self._tell(f"adapter {entry.name} cannot be loaded again and is dropped: {error.report.summary}")
                if not entry.retired and self._catalogue.retire(entry.name)[1]:
                    self._close(entry)
        return lost

    def rest(self) -> None:
        """End the planner until the next load."""
        self._planning.rest()

    def close(self) -> None:
        """Stop a load that is under way at its next slice, and end the planner. Safe to call twice."""
        with self._lock:
            self._closing = True
            running = self._running
        self._thread.shutdown(wait=False)
        if running is not None:
            wait([running], CLOSE_SECONDS)
        self._planning.rest()

    def _load(self, name: str, path: str, pinned: bool) -> AdapterInfo:
        self._check_live()
        request = open_named(self._host, name, path)
        digest = content_digest(self._host, request.index.source, request.index.files)
        present = self._catalogue.get(name)
        if present is not None and present.digest == digest:
            return self._catalogue.keep(name, pinned=pinned or None).info()
        plan = self._planning.plan(request)
        self._limits.check_rank(plan)
        pinned = pinned or (present is not None and present.pinned)
        entry = Entry(plan, next(self._numbers), digest, pinned=pinned)
        self._make_room(entry)
        self._arriving = entry
        try:
            self._bring_in(partial(self._ask_between, entry), entry)
        finally:
            self._arriving = None
        replaced = self._catalogue.publish(entry)
        if replaced is not None:
            self._close(replaced)
        return entry.info()

    def _make_room(self, entry: Entry) -> None:
        """Take away what must go for an adapter, and say so."""
        on_the_way = [each.closed for each in self._catalogue.held() if each.retired and not each.uses]
        wait(on_the_way, CALL_SECONDS)
        for victim in self._catalogue.make_room(entry.name, entry.nbytes):
            self._close(victim)
            wait([victim.closed], CALL_SECONDS)
            self._tell(f"adapter {victim.name} ({victim.nbytes} bytes) made room for {entry.name} ({entry.nbytes} bytes)")

    def _bring_in(self, ask: Ask, entry: Entry) -> None:
        """Bring an adapter to the ranks, and make sure that it is the one whose content is known."""
        bring_in(ask, entry.plan, entry.number, self.reach.slice_seconds)
        if content_digest(self._host, entry.plan.source, entry.plan.files) != entry.digest:
            take_away(ask, entry.number)
            raise IntegrityError(
                "LM-ADAPTER-CHANGED",
                "the adapter's files changed while they were read",
                where={"adapter": entry.name, "source": entry.plan.source},
                hints=["load it again once they are complete"],
            )

    def _ask_between(self, entry: Entry, op: str, bodies: bytes | Sequence[bytes]) -> Answer:
        """Make a call about an adapter that arrives. Refused while closing, so that a load ends at its next slice."""
        if self._closing:
            raise _closing()

        def call() -> Answer:
            if not entry.resident:
                why = "the engine fell asleep, or changed its weights"
                raise ResourceError("LM-ADAPTER-ASLEEP", "an adapter did not arrive in time", why=why, hints=["load it again"])
            return self._ask(op, bodies)

        answer = self.reach.begin(call)
        try:
            return answer.result(CALL_SECONDS)
        except TimeoutError:
            answer.cancel()
            raise ResourceError("LM-ENGINE-BUSY", f"the ranks had no time for an adapter in {CALL_SECONDS:.0f} s") from None

    def _unload(self, name: str, outcome: Future[int]) -> None:
        try:
            self._check_live()
            entry, unused = self._catalogue.retire(name)
        except LoadmasterError as error:
            outcome.set_exception(error)
            return
        entry.closed.add_done_callback(partial(_pass_on, outcome))
        if unused:
            self._close(entry)

    def _release(self, entry: Entry) -> None:
        if self._catalogue.release(entry):
            self._close(entry)

    def _close(self, entry: Entry) -> None:
        """Take an adapter that nobody uses any more from the ranks."""

        def call() -> Answer:
            if not entry.resident:
                return Answer((), 0.0)  # given back with the weights
            return self._ask("adapter_close", encode(AdapterClose(number=entry.number)))

        self.reach.begin(call).add_done_callback(partial(self._closed, entry))

    def _closed(self, entry: Entry, answer: Future[Answer]) -> None:
        self._catalogue.drop(entry)
        error = answer.exception()
        if error is not None:
            entry.closed.set_exception(error)
        else:
            entry.closed.set_result(sum(state.nbytes for state in answer.result().states))

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


def _closing() -> ResourceError:
    return ResourceError("LM-ENGINE-DRAINING", "the engine is closing and loads no more adapters")


def _pass_on(outcome: Future[int], closed: Future[int]) -> None:
    error = closed.exception()
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(closed.result())
