"""Planning of adapters beside running requests: by a planner that stays, a process beside the ranks where these are some."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from loadmaster.bringup import PLAN_TIMEOUT, START_TIMEOUT, while_planning
from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.run.adapter_planning import ADAPTER_PLANNER, BACKGROUND_PLANNER, Planned
from loadmaster_engine.run.messages import PlanRequest, decode, encode
from loadmaster_hookspecs.errors import LoadmasterError, from_report
from loadmaster_hookspecs.executors import Executor, HostRecord, WorkerSpec
from loadmaster_hookspecs.plan import AdapterPlan

REST_SECONDS: Final = 10.0
"""Seconds that ending the planner waits for a plan."""


class AdapterPlanning:
    """Plans one adapter at a time. The planner starts with the first one, `beside` the ranks, and stays until `rest`.

    With ranks in this process (not `separate`) it is part of it too and shares the interpreter with their steps; the base model
    is then described in a `turn`, because modelling code changes settings of the whole process meanwhile.
    """

    def __init__(
        self,
        beside: Callable[[], Executor],
        separate: bool,
        host: HostRecord,
        base: PlanRequest,
        turn: Callable[[], AbstractContextManager[None]],
        tell: Callable[[str], None],
    ) -> None:
        self._turn = turn
        self._beside = beside
        self._separate = separate
        self._host = host
        self._base = base
        self._tell = tell
        self._lock = threading.Lock()
        self._executor: Executor | None = None

    def plan(self, request: AdapterRequest) -> AdapterPlan:
        """Return the plan of an adapter for all ranks. Raises what its kind and the planner find wrong with it."""
        with self._lock:
            planned = self._planned(request)
        if planned.plan is None:
            raise from_report(planned.error) if planned.error else AssertionError("neither a plan nor an error")
        for finding in planned.findings:
            self._tell(finding.message)
        return planned.plan

    def plan_on(self, base: PlanRequest) -> None:
        """Plan on other weights from now on: the planner that knows the old ones ends."""
        with self._lock:
            self._end()
            self._base = base

    def rest(self) -> None:
        """End the planner; the next adapter starts another one. One that is busy for long is left to end with the ranks."""
        if self._lock.acquire(timeout=REST_SECONDS):
            try:
                self._end()
            finally:
                self._lock.release()

    def _planned(self, request: AdapterRequest) -> Planned:
        waited = self._executor is not None
        try:
            return decode(self._running().call("adapter", encode(request), timeout=PLAN_TIMEOUT)[0].body, Planned)
        except LoadmasterError as error:
            self._end()  # it has ended already; the next adapter gets a new one
            if waited and error.code == "LM-WORKER-DIED":  # while it waited for work, as when memory was short
                return self._planned(request)
            raise while_planning(error) from error.__cause__

    def _running(self) -> Executor:
        if self._executor is None:
            service = BACKGROUND_PLANNER if self._separate else ADAPTER_PLANNER
            self._executor = self._beside()
            spec = WorkerSpec(rank=0, world_size=1, service=service, host=self._host, threads=1)
            self._executor.start([spec], timeout=START_TIMEOUT)
            with contextlib.nullcontext() if self._separate else self._turn():
                self._executor.call("base", encode(self._base), timeout=PLAN_TIMEOUT)
        return self._executor

    def _end(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            with contextlib.suppress(LoadmasterError):  # what ended it has been told
                executor.stop()
