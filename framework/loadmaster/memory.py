"""Does a plan fit into this machine's memory: judged before anything is reserved, and looked at again afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from loadmaster.machine import memory_limit
from loadmaster_hookspecs.errors import ResourceError
from loadmaster_hookspecs.plan import LoadPlan

CGROUP: Final = Path("/sys/fs/cgroup")

_RECLAIMABLE: Final = ("inactive_file", "active_file")
"""Page cache in `memory.stat`: it counts as used by the group, but the kernel gives it up when memory is needed."""


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


def available_memory(proc: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int:
    """Return the bytes that processes of this container can still take: the node's free memory, or what its limit leaves."""
    node = _fields(proc).get("MemAvailable", 0) * 1024
    limit = memory_limit(cgroup)
    return node if limit is None else max(0, min(node, limit - _used(cgroup)))


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
        hints=["free memory or raise the container's limit", *_narrower(plan, available)],
    )


def _narrower(plan: LoadPlan, available: int) -> list[str]:
    """Return the remedy that would be enough: half the bytes per element."""
    weights = sum(rank.bytes for rank in plan.ranks if not rank.packed)
    return ["use --dtype bfloat16"] if plan.dtype == "F32" and 0 < weights / 2 <= available else []


def _used(cgroup: Path) -> int:
    """Return what the control group uses and could not give back."""
    current = _number(cgroup / "memory.current") or _number(cgroup / "memory/memory.usage_in_bytes")
    stat = _fields(cgroup / "memory.stat") or _fields(cgroup / "memory/memory.stat")
    return current - sum(stat.get(name, 0) for name in _RECLAIMABLE)


def _fields(path: Path) -> dict[str, int]:
    try:
        rows = (line.replace(":", " ").split() for line in path.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
    except OSError:
        return {}


def _number(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0
