"""The planner as a service, so that it can run in a process of its own which imports what planning needs and ends."""

from __future__ import annotations

from loadmaster_engine.plan import make_plan
from loadmaster_engine.plugin_host import PluginHost, rebuild_host
from loadmaster_engine.run.messages import PlanRequest, decode, encode
from loadmaster_hookspecs.errors import UsageError
from loadmaster_hookspecs.executors import EventSink, Result, WorkerSpec


class PlannerService:
    """Answers one op, `plan`."""

    def __init__(self, host: PluginHost) -> None:
        self._host = host

    def handle(self, op: str, body: bytes, emit: EventSink) -> Result:
        """Return the sealed plan for a PlanRequest."""
        if op != "plan":
            raise UsageError("LM-SERVICE-OP", f"the planner does not know the call {op!r}")
        request = decode(body, PlanRequest)
        return Result(body=encode(make_plan(self._host, request.index, request.settings, request.adapters)))

    def abort(self) -> None:
        """Do nothing: planning waits for nobody."""

    def close(self) -> None:
        """Do nothing: planning holds nothing."""


def planner_service(spec: WorkerSpec) -> PlannerService:
    """Make the service in the planner's process."""
    return PlannerService(rebuild_host(spec.host))
