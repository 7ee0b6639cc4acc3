"""The plan as users hold it: data with a table, JSON in and out, and its ledger."""

from __future__ import annotations

import msgspec

from loadmaster_hookspecs.errors import UsageError
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.plan import PLAN_VERSION, Ledger, LoadPlan, RankPlan


class Plan:
    """A sealed load plan. `str(plan)` is the table that the command line prints; `data` is the record itself."""

    def __init__(self, data: LoadPlan) -> None:
        self.data = data

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        """One plan per rank; `ranks[i].bytes` is the exact size of its weight arena."""
        return self.data.ranks

    @property
    def ledger(self) -> Ledger:
        """The two-way account of parameters and stored tensors."""
        return self.data.ledger

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was noticed while planning."""
        return self.data.findings

    @property
    def digest(self) -> str:
        """SHA-256 over everything that decides the loaded bytes: the same wherever the same files are planned alike."""
        return self.data.digest

    def to_json(self) -> str:
        """Return the whole plan as one JSON document."""
        return msgspec.json.encode(self.data).decode()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan in `text`. Raises UsageError LM-PLAN-FILE when it is no plan, altered, or of another version."""
        from loadmaster_engine.plan.digest import digest

        try:
            data = msgspec.json.decode(text, type=LoadPlan)
        except msgspec.DecodeError as error:
            raise UsageError("LM-PLAN-FILE", "the text is not a load plan", why=str(error)) from error
        if data.version != PLAN_VERSION:
            raise UsageError("LM-PLAN-FILE", f"the plan has version {data.version}, this is version {PLAN_VERSION}")
        if data.digest != digest(data):
            raise UsageError("LM-PLAN-FILE", "the plan was altered after it was sealed", hints=["plan again"])
        return cls(data)

    def __str__(self) -> str:
        from loadmaster.display.plan_table import render_plan

        return render_plan(self.data)
