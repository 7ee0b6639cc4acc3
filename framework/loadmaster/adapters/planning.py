"""Planning of adapters beside running requests: by a planner that stays, in a process of its own where ranks have theirs."""

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
from loadmaster_hookspecs.executors import Executor, ExecutorFactory, HostRecord, WorkerSpec
from loadmaster_hookspecs.plan import AdapterPlan

REST_SECONDS: Final = 10.0
"""Seconds that ending the planner waits for a plan."""


class AdapterPlanning:
    """Plans one adapter at a time. The planner starts with the first one and stays until `rest`.

    With ranks in this process it is part of it too and shares the interpreter with their steps; the base model is then
    described in a `turn`, because modelling code changes settings of the whole process meanwhile.
    """

    def __init__(
        self,
        factory: ExecutorFactory,
        host: HostRecord,
        base: PlanRequest,
        turn: Callable[[], AbstractContextManager[None]],
        tell: Callable[[str], None],
    ) -> None:
        self._turn = turn
        self._factory = factory
        self._host = host
        self._base = base
        self._tell = tell
        self._lock = threading.Lock()
        self._executor: Executor | None = None

    def plan(self, request: AdapterRequest) -> AdapterPlan:
        """Return the plan of an adapter for all ranks. Raises what its kind and the planner find wrong with it."""
        with self._lock:
            try:
                answer = self._running().call("adapter", encode(request), timeout=PLAN_TIMEOUT)[0]
            except LoadmasterError as error:
                self._end()  # it has ended already; the next adapter gets a new one
                raise while_planning(error) from error.__cause__
        planned = decode(answer.body, Planned)
        if planned.plan is None:
            raise from_report(planned.error) if planned.error else AssertionError("neither a plan nor an error")
        for finding in planned.findings:
            self._tell(finding.message)
        return planned.plan

    def rest(self) -> None:
        """End the planner, in the middle of a plan if that takes long. The next adapter starts another one."""
        waited = self._lock.acquire(timeout=REST_SECONDS)
        try:
            self._end()
        finally:
            if waited:
                self._lock.release()

    def _running(self) -> Executor:
        if self._executor is None:
            separate = self._factory.separate_processes
            service = BACKGROUND_PLANNER if separate else ADAPTER_PLANNER
            self._executor = self._factory.create(preload=(), on_event=lambda _: None)
            spec = WorkerSpec(rank=0, world_size=1, service=service, host=self._host, threads=1)
            self._executor.start([spec], timeout=START_TIMEOUT)
            with contextlib.nullcontext() if separate else self._turn():
                self._executor.call("base", encode(self._base), timeout=PLAN_TIMEOUT)
        return self._executor

    def _end(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            with contextlib.suppress(LoadmasterError):  # what ended it has been told
                executor.stop()
