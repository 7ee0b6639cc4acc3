"""The planner of adapters as a service that stays: what it imports and knows of the base model serves every adapter.

An adapter that cannot be planned is told in the answer and not raised, so that the service goes on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.plugin_host import PluginHost, rebuild_host
from loadmaster_engine.run.messages import PlanRequest, decode, encode
from loadmaster_hookspecs.errors import ErrorReport, LoadmasterError, UsageError, WorkerError
from loadmaster_hookspecs.executors import EventSink, Result, WorkerSpec
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.plan import AdapterPlan

if TYPE_CHECKING:
    from loadmaster_engine.plan.adding import AdapterPlanner

ADAPTER_PLANNER = "loadmaster_engine.run.adapter_planning:adapter_planner"
BACKGROUND_PLANNER = "loadmaster_engine.run.adapter_planning:background_planner"

NICENESS = 7
"""How far a planner in a process of its own stands back from the ranks when processors are short: to a fifth of their share.
They are in one session, so this counts also where a system shares processors out by session."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to op `adapter`: a plan and what was noticed, or why there is none."""

    plan: AdapterPlan | None = None
    findings: tuple[Finding, ...] = ()
    error: ErrorReport | None = None


class AdapterPlannerService:
    """Ops: `base` with the PlanRequest of the model that is loaded, once; then `adapter` with an AdapterRequest each."""

    def __init__(self, host: PluginHost) -> None:
        self._host = host
        self._planner: AdapterPlanner | None = None

    def handle(self, op: str, body: bytes, emit: EventSink) -> Result:
        """Answer one call. Raises what planning the base raises, and UsageError for an unknown op."""
        if op == "base":
            from loadmaster_engine.plan.adding import AdapterPlanner

            request = decode(body, PlanRequest)
            self._planner = AdapterPlanner(self._host, request.index, request.settings)
            return Result()
        if op == "adapter":
            return Result(body=encode(self._adapter(decode(body, AdapterRequest))))
        raise UsageError("LM-SERVICE-OP", f"the planner of adapters does not know the call {op!r}")

    def abort(self) -> None:
        """Do nothing: planning waits for nobody."""

    def close(self) -> None:
        """Forget the base model."""
        self._planner = None

    def _adapter(self, request: AdapterRequest) -> Planned:
        if self._planner is None:
            raise WorkerError("LM-SERVICE-ORDER", "an adapter was to be planned before its base model was")
        try:
            plan, findings = self._planner.plan(request)
        except LoadmasterError as error:
            return Planned(error=error.report)
        return Planned(plan=plan, findings=findings)


def adapter_planner(spec: WorkerSpec) -> AdapterPlannerService:
    """Make the service in the caller's process."""
    return AdapterPlannerService(rebuild_host(spec.host))


def background_planner(spec: WorkerSpec) -> AdapterPlannerService:
    """Make the service in a process of its own, which lets other processes go first."""
    os.nice(NICENESS)
    return adapter_planner(spec)
