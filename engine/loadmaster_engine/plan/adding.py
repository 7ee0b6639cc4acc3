"""Adapters that come to a model which is loaded already: each is planned by itself, against what the model was planned from."""

from __future__ import annotations

from typing import NamedTuple

from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.plan.adapters import claim_adapters, plan_adapters
from loadmaster_engine.plan.drafting import draft_base, placed_base
from loadmaster_engine.plan.planner import check_transforms, remarks_on
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.plan import AdapterPlan, PlanSettings


class AddedAdapter(NamedTuple):
    """The plan of one adapter for all ranks, and what was noticed."""

    plan: AdapterPlan
    findings: tuple[Finding, ...]


class AdapterPlanner:
    """Describes and places the base model once, as for its load with the same index and settings, and keeps that."""

    def __init__(self, host: PluginHost, index: CheckpointIndex, settings: PlanSettings) -> None:
        self._host = host
        self._base = draft_base(host, index, settings)

    def plan(self, request: AdapterRequest) -> AddedAdapter:
        """Return the plan of an adapter. Raises what `make_plan` raises for one that does not fit."""
        (claimed,) = claim_adapters(self._host, [request], self._base.spec, self._base.plain, merged=False)
        (plan,) = plan_adapters(placed_base(self._base), [claimed])
        check_transforms(self._host, plan.ranks)
        return AddedAdapter(plan, tuple(remarks_on(claimed)))
