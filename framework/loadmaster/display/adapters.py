"""Adapters of a plan in words and numbers."""

from __future__ import annotations

from loadmaster.display.columns import align, facts
from loadmaster.display.units import count, size
from loadmaster_hookspecs.plan import AdapterPlan, LoadPlan


def adapter_lines(plan: LoadPlan) -> list[tuple[str, str]]:
    """Return one line per adapter: what it is, and the bytes it takes on all ranks together, and on each."""
    mode = plan.settings.adapter_mode
    return [("adapter", f"{adapter.name}: {adapter.summary}, {mode}, {_memory(adapter)}") for adapter in plan.adapters]


def render_adapters(plan: LoadPlan) -> str:
    """Return what every adapter of a plan does to the base model, module by module."""
    return "\n\n".join(_render(adapter) for adapter in plan.adapters)


def _memory(adapter: AdapterPlan) -> str:
    total = size(sum(rank.bytes for rank in adapter.ranks))
    return f"{total} ({_by_rank(adapter)})" if len(adapter.ranks) > 1 else total


def _by_rank(adapter: AdapterPlan) -> str:
    return ", ".join(f"rank {rank.rank} {size(rank.bytes)}" for rank in adapter.ranks)


def _render(adapter: AdapterPlan) -> str:
    ledger = adapter.ledger
    head = facts(
        [
            ("adapter", f"{adapter.name}  ({count(len(adapter.files), 'file')}, {size(ledger.bytes_total)})"),
            ("kind", f"{adapter.summary}, by {adapter.kind}"),
            ("ledger", f"{len(ledger.used)}/{ledger.tensors} tensors, {size(ledger.bytes_unique)}"),
            ("memory", _by_rank(adapter)),
        ]
    )
    rows = [["module", "rank", "scale", "tensors"]]
    for part in adapter.parts:
        rank = part.params.get("rank", part.axes.get("rank", ""))
        rows.append([part.path, str(rank), f"{part.scale:g}", ", ".join(part.tensors)])
    rows += [[each.path, "", "", f"{each.name} replaced"] for each in adapter.replacements]
    return "\n".join([*head, "", *align(rows, right=(1, 2))])
