"""Does a plan fit into this machine's memory: judged before anything is reserved, and looked at again afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from loadmaster.control_groups import OWN, ROOT, memory_limits
from loadmaster.remedies import narrower
from loadmaster_hookspecs.errors import ResourceError
from loadmaster_hookspecs.plan import LoadPlan


class Available(NamedTuple):
    """Free memory in bytes before and after a load. `usable` is what later stages may count on."""

    before: int
    after: int

    @property
    def usable(self) -> int:
        """The lower of the two: memory that others gave back meanwhile may be taken again."""
        return min(self.before, self.after)

    @property
    def notice(self) -> str:
        """A line for the user when free memory rose or stood still, as it does when others give memory back; empty otherwise.

        A rise below a hundredth is noise: a small model takes less than processes around it give and take.
        """
        if self.after < self.before or self.before < self.after < 1.01 * self.before:
            return ""
        return (
            f"free memory went from {self.before / 1e9:.1f} GB to {self.after / 1e9:.1f} GB during the load, because another "
            f"process gave memory back: {self.usable / 1e9:.1f} GB is counted on"
        )


def available_memory(proc: Path = Path("/proc/meminfo"), cgroup: Path = ROOT, own: Path = OWN) -> int:
    """Return the bytes that processes of this container can still take: the node's free memory, or what a limit leaves."""
    node = _fields(proc).get("MemAvailable", 0) * 1024
    return max(0, min([node, *(limit.nbytes - limit.used for limit in memory_limits(cgroup, own))]))


def paging_notice(plan: LoadPlan, available: int) -> str:
    """Return a line for the user when mapped weights will not stay in memory together; empty where they do.

    Mapped pages are given up under pressure and come back from storage, so this is slow and not an error.
    """
    arena = sum(rank.bytes + rank.staging + rank.scratch for rank in plan.ranks)
    mapped = sum(op.source.nbytes for rank in plan.ranks for op in rank.reads if op.via == "mapped" and not op.repeated)
    if not mapped or arena + mapped <= available:
        return ""
    return (
        f"{(arena + mapped) / 1e9:.2f} GB of weights do not stay in {available / 1e9:.2f} GB of memory together: parts of the "
        "files will be read again in every step"
    )


def weight_bytes(plan: LoadPlan) -> int:
    """Return what the weights take in memory of all ranks' own, those of adapters included; mapped ones are not."""
    return sum(rank.bytes for part in (plan.ranks, *(adapter.ranks for adapter in plan.adapters)) for rank in part)


def scratch_bytes(plan: LoadPlan) -> int:
    """Return what a load takes for a while, over all ranks."""
    return sum(rank.staging + rank.scratch for rank in plan.ranks)


def check_fit(plan: LoadPlan, available: int) -> None:
    """Raise ResourceError LM-MEMORY-FIT, with the sum and the remedy, when the ranks of one node need more than `available`."""
    weights, scratch = weight_bytes(plan), scratch_bytes(plan)
    if weights + scratch <= available:
        return
    raise ResourceError(
        "LM-MEMORY-FIT",
        f"the model does not fit: {(weights + scratch) / 1e9:.2f} GB needed, {available / 1e9:.2f} GB available",
        where={"ranks": len(plan.ranks), "device": plan.settings.device},
        why=f"weights {weights / 1e9:.2f} GB + scratch {scratch / 1e9:.2f} GB on one node",
        hints=["free memory or raise the container's limit", *narrower(plan, available - scratch)],
    )


def _fields(path: Path) -> dict[str, int]:
    try:
        rows = (line.replace(":", " ").split() for line in path.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
    except OSError:
        return {}
