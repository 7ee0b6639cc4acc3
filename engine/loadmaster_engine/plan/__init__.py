"""Planning: axes and placements become boxes, boxes become byte regions, regions become a plan that the ledger proves."""

from __future__ import annotations

from loadmaster_engine.plan.planner import make_plan

__all__ = ["make_plan"]
