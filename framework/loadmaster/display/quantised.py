"""Quantised matrices in one line each: how many, how many bits a weight really takes, what that saves, what multiplies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from loadmaster.display.units import count, size
from loadmaster.inspection import kind_of
from loadmaster_hookspecs.plan import LoadPlan, RankPlan
from loadmaster_hookspecs.quantization import PackedMatrix

BF16_BITS = 16
BIAS = "bias"


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """All matrices of one kind over all ranks: their weights, and the bytes that stand for them, scales and zeros included."""

    kind: str
    matrices: int
    weights: int
    nbytes: int
    kernels: dict[str, int]

    @property
    def bits_per_weight(self) -> float:
        """What one weight takes, with its share of scales and zero points."""
        return 8 * self.nbytes / self.weights if self.weights else 0.0


def packed_kinds(plan: LoadPlan) -> list[Packed]:
    """Return the kinds of quantised matrices in a plan, those with most weights first. A bias is no part of one."""
    kinds: dict[str, list[tuple[PackedMatrix, int, bool]]] = defaultdict(list)
    for rank in plan.ranks:
        sizes = _bytes_by_path(rank)
        for part in rank.packed:
            kinds[kind_of(part.quantizer, part.bits, part.group_size)].append((part, sizes[part.path], rank is plan.ranks[0]))
    found = [_summed(kind, rows) for kind, rows in kinds.items()]
    return sorted(found, key=lambda packed: -packed.weights)


def quantised_lines(plan: LoadPlan) -> list[tuple[str, str]]:
    """Return what the plan's table says about quantised matrices, one line for each kind."""
    return [("quantised", _line(packed)) for packed in packed_kinds(plan)]


def _line(packed: Packed) -> str:
    plain = packed.weights * BF16_BITS // 8
    kernels = ", ".join(f"{name} ({number})" for name, number in sorted(packed.kernels.items()))
    return (
        f"{packed.kind}: {count(packed.matrices, 'matrix', 'matrices')}, {packed.bits_per_weight:.2f} bits per weight, "
        f"{size(packed.nbytes)} instead of {size(plain)} in bfloat16 ({100 * packed.nbytes / plain:.1f} %), by {kernels}"
    )


def _summed(kind: str, rows: Sequence[tuple[PackedMatrix, int, bool]]) -> Packed:
    kernels: Counter[str] = Counter()
    for part, _, first in rows:
        kernels[part.kernel] += max(part.count, 1) if first else 0
    return Packed(
        kind=kind,
        matrices=kernels.total(),
        weights=sum(_weights(part) for part, _, _ in rows),
        nbytes=sum(nbytes for _, nbytes, _ in rows),
        kernels=dict(kernels),
    )


def _weights(part: PackedMatrix) -> int:
    rows, columns = (sum(interval.size for interval in side) for side in (part.out, part.inner))
    return rows * columns * max(part.count, 1)


def _bytes_by_path(rank: RankPlan) -> Counter[str]:
    """Return the bytes of each packed matrix on one rank that stay in memory."""
    sizes: Counter[str] = Counter()
    paths = {part.path for part in rank.packed}
    for binding in rank.bindings:
        path, _, name = binding.parameter.rpartition(".")
        if path in paths and name != BIAS and not binding.staged:
            sizes[path] += binding.nbytes
    return sizes
