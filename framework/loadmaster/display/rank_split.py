"""Which heads and which part of the vocabulary every rank owns, read back out of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from loadmaster.display.units import span
from loadmaster_hookspecs.plan import LoadPlan, RankPlan
from loadmaster_hookspecs.sharding import Interval

_QUERY: Final = "q_proj"
_KEY: Final = "k_proj"
_VOCAB: Final = ("embed_tokens", "lm_head")


class RankSplit(NamedTuple):
    """Columns of the rank table: their names, and one row of cells per rank. Empty where nothing is split."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def rank_split(plan: LoadPlan) -> RankSplit:
    """Return what each rank owns of query heads, key-value heads and vocabulary, as inclusive ranges.

    Heads are known for models that keep query and key projections apart; other columns are left out.
    """
    head = plan.outline.head_dim
    columns = [
        ("query heads", [_owned(rank, (_QUERY,), "out") for rank in plan.ranks], head),
        ("kv heads", [_owned(rank, (_KEY,), "out") for rank in plan.ranks], head),
        ("vocabulary", [_owned(rank, _VOCAB, "vocab") for rank in plan.ranks], 1),
    ]
    known = [(name, [span(cell, unit) for cell in cells]) for name, cells, unit in columns if any(cells)]
    rows = tuple(tuple(cells[at] for _, cells in known) for at in range(len(plan.ranks)))
    return RankSplit(tuple(name for name, _ in known), rows)


def heads_line(plan: LoadPlan) -> str:
    """Return `6+3 query and 2+1 key-value heads`, or nothing where heads are not split."""
    query, key = _heads(plan, _QUERY), _heads(plan, _KEY)
    return f"{query} query and {key} key-value heads" if query and key else ""


def _heads(plan: LoadPlan, module: str) -> str:
    owned = [_owned(rank, (module,), "out") for rank in plan.ranks]
    if not any(owned):
        return ""
    return "+".join(str(sum(interval.size for interval in cell) // plan.outline.head_dim) for cell in owned)


def _owned(rank: RankPlan, names: Sequence[str], axis: str) -> tuple[Interval, ...]:
    """Return the intervals of the first module with one of `names` that is cut on `axis`."""
    for module in rank.modules:
        if module.path.rpartition(".")[2] in names and axis in module.placement.owns:
            return module.placement.owns[axis]
    return ()
