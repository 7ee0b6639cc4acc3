"""A second set of weights, loaded while the first one answers steps, that takes its place when every rank has proved it.

Bytes are moved on a thread of their own, so steps go on meanwhile. What changes settings of the whole process (building) or
needs all ranks at once (adapters, a token as a trial) is done between two steps, by an agreement: when one rank cannot, none
does. Whatever goes wrong is told in the state and not raised, unless ranks can no longer reach each other: weights that cannot
be loaded end no worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Thread, get_native_id
from typing import Final

from loadmaster_engine.executors.failure import report_of
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.report import RankReport
from loadmaster_engine.run.agreement import UPDATE, Agreement
from loadmaster_engine.run.batch import prefill_logits
from loadmaster_engine.run.groups import Group
from loadmaster_engine.run.loaded import LoadedModel
from loadmaster_engine.run.messages import Assignment, ShadowState
from loadmaster_engine.run.paged.part import ServingPart
from loadmaster_hookspecs.errors import ErrorReport, PlanError
from loadmaster_hookspecs.events import Event, Progress

NICENESS: Final = 10
"""Steps go first: the loading threads get a tenth of a processor that steps want too, and all of it otherwise."""


class Dropped(Exception):
    """The load is not wanted any more."""


class Shadow:
    """Owns the second set on one rank. `begin` it, look at `state` until it is no longer busy, then `adapt` and `try_out`.

    `serving` takes the place of the part that serves; None where the model does not serve.
    """

    def __init__(self, host: PluginHost, assignment: Assignment, group: Group) -> None:
        self.loaded: LoadedModel | None = None
        self.serving: ServingPart | None = None
        self._host = host
        self._assignment = assignment
        self._group = group
        self._done = 0
        self._wanted = True
        self._report: RankReport | None = None
        self._error: ErrorReport | None = None
        self._thread = Thread(target=self._attempt, args=(self._load,), name="loadmaster-shadow", daemon=True)

    def begin(self) -> None:
        """Build the model, then start the thread that reserves, loads, binds and verifies."""
        self._attempt(self._build)
        self._attempt(self._thread.start)

    def state(self) -> ShadowState:
        """Return how far it is."""
        return ShadowState(busy=self._thread.is_alive(), done=self._done, report=self._report, error=self._error)

    def adapt(self) -> None:
        """Make the plan's adapters again on the new weights."""
        self._together(lambda agreement: self._ready.adapt(agreement))

    def try_out(self, serving: ServingPart | None) -> None:
        """Run a token with the new weights. Where the model serves it must keep what the old one keeps, in the same blocks."""
        if serving is None:
            self._together(self._run)
        else:
            self._together(lambda agreement: self._take_over(serving, agreement))

    def drop(self) -> None:
        """Let the thread end at its next report, and forget the weights once it has."""
        self._wanted = False
        if not self._thread.is_alive():
            if self.loaded is not None:
                self.loaded.release()
            self.loaded = self.serving = None

    def _build(self) -> None:
        self.loaded = LoadedModel(self._host, self._assignment, self._observe)
        self.loaded.build()

    def _load(self) -> None:
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)  # Linux: of this thread, and of those that it starts
        loaded = self._ready
        loaded.loading.reserve()
        loaded.loading.warm(self._assignment.share)
        loaded.loading.load()
        loaded.bind(self._group)
        self._report = loaded.verify()

    def _run(self, agreement: Agreement) -> None:
        with self._ready.within(agreement):
            prefill_logits(self._ready.model, (0,), self._assignment.device)

    def _take_over(self, serving: ServingPart, agreement: Agreement) -> None:
        fresh = ServingPart(self._ready.model, self._ready.adapters, self._assignment.rank, self._assignment.device)
        with self._ready.within(agreement):
            fits = fresh.take_over(serving)
        if not fits:
            raise PlanError(
                "LM-UPDATE-MODEL",
                "the new weights keep other keys and values than the old ones",
                where={"rank": self._assignment.rank},
                why="layers differ in heads, sizes or windows of their attention",
                hints=["start an engine of its own with them"],
            )
        self.serving = fresh

    def _observe(self, event: Event) -> None:
        """Take note of progress, on the thread. Observers hear of it from the host, which looks at the state."""
        if not self._wanted:
            raise Dropped
        if isinstance(event, Progress):
            self._done = event.done

    def _together(self, work: Callable[[Agreement], None]) -> None:
        """Do what needs all ranks at once."""
        agreement = Agreement(self._group, self._assignment.device, UPDATE)

        def agreed() -> None:
            work(agreement)
            agreement.done()

        self._attempt(agreed)
        agreement.end(self._error)

    def _attempt(self, work: Callable[[], None]) -> None:
        if self._error is not None:
            return
        try:
            work()
        except Exception as error:  # boundary: it belongs to who asked for the update, not to those whose steps run # noqa: BLE001
            self._error = report_of(error)

    @property
    def _ready(self) -> LoadedModel:
        assert self.loaded is not None, "a shadow was used before it was begun"
        return self.loaded
