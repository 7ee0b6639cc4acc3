"""What adapters may take: memory over all ranks, and the rank of a single one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from loadmaster_hookspecs.errors import PlanError, ResourceError
from loadmaster_hookspecs.plan import AdapterPlan, LoadPlan

SHARE: Final = 20
LEAST: Final = 64 << 20
"""Without a setting, adapters that come later may take a twentieth of the model's bytes, and 64 MiB at least."""

RANK: Final = "rank"
"""The axis of an adapter's parts whose size is its rank, in kinds that have one."""


class AdapterLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`nbytes` for all adapters over all ranks together, or `auto`; `rank` of the largest one, or 0 for any."""

    nbytes: int | Literal["auto"] = "auto"
    rank: int = 0

    def budget(self, plan: LoadPlan) -> int:
        """Return the bytes for adapters, those of the plan included. Merged ones take none."""
        if plan.settings.adapter_mode == "merged":
            return 0
        if self.nbytes != "auto":
            return self.nbytes
        weights = sum(rank.bytes + rank.bytes_mapped for rank in plan.ranks)
        return max(LEAST, weights // SHARE) + total_bytes(plan.adapters)

    def check(self, plan: LoadPlan) -> None:
        """Raise PlanError or ResourceError when the adapters that come with a model are beyond the limits."""
        for adapter in plan.adapters:
            self.check_rank(adapter)
        need, budget = total_bytes(plan.adapters), self.budget(plan)
        if plan.settings.adapter_mode == "live" and need > budget:
            raise ResourceError(
                "LM-ADAPTER-BUDGET",
                f"the adapters take {need} bytes, {budget} are set",
                hints=[f"set adapter_bytes to {need} or more"],
            )

    def check_rank(self, adapter: AdapterPlan) -> None:
        """Raise PlanError LM-ADAPTER-RANK when a part of an adapter has a higher rank than allowed."""
        part = max(adapter.parts, key=lambda part: part.axes.get(RANK, 0), default=None)
        rank = part.axes.get(RANK, 0) if part else 0
        if part and 0 < self.rank < rank:
            raise PlanError(
                "LM-ADAPTER-RANK",
                f"the adapter's rank is beyond the limit: {rank} > {self.rank}",
                where={"adapter": adapter.name, "module": part.path},
                hints=[f"set max_adapter_rank to {rank} or more, or to 0 for no limit"],
            )


def total_bytes(adapters: Iterable[AdapterPlan]) -> int:
    """Return what adapters take over all ranks."""
    return sum(rank.bytes for adapter in adapters for rank in adapter.ranks)
