"""Who owns what: topology, units that must stay whole, placements, and the strategies that decide them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from loadmaster_hookspecs.findings import Finding

if TYPE_CHECKING:
    from loadmaster_hookspecs.models import ModelOutline, ModuleSpec

UnitKind = Literal["plain", "query_heads", "kv_heads", "vocab"]

CollectiveIn = Literal["", "slice", "shift_ids"]
"""What happens to a module's input: `slice` keeps the rank's own part of the last dimension; `shift_ids` moves token ids into
the rank's own rows and blanks the others."""

CollectiveOut = Literal["", "sum", "concat"]
"""What happens to a module's output: `sum` adds the ranks' partial results; `concat` joins their parts in rank order."""


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """Half-open interval `[start, stop)` of logical elements on one axis."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """What must stay whole on an axis: `count` units of `size` logical elements each; the last one may be shorter.

    For `query_heads` a unit is a head and `ratio` the number of query heads that share one key-value head; for `kv_heads` a
    unit is a key-value head with the same `ratio`, so that both kinds are cut consistently. An axis may consist of several
    `segments` of equal size, each with `count` units, that are all cut alike: the gate and up halves of a fused projection.
    """

    size: int = 1
    count: int
    kind: UnitKind = "plain"
    ratio: int = 1
    segments: int = 1


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks a model is spread over. `equal` refuses splits whose ranks differ in size."""

    tensor_parallel: int = 1
    equal: bool = False


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one module that one rank owns.

    `owns` gives, per axis that is cut, the intervals the rank holds in order; an axis that is not named is held whole.
    `padding` gives elements of zeros appended to an axis after the owned ones; `zeros` names tensors that this rank fills with
    zeros because another rank contributes them (the bias of a summed output). `total` is the logical size of the axis that
    `concat` joins, without padding.
    """

    owns: dict[str, tuple[Interval, ...]] = {}
    padding: dict[str, int] = {}
    zeros: tuple[str, ...] = ()
    collective_in: CollectiveIn = ""
    collective_out: CollectiveOut = ""
    total: int = 0

    def size(self, axis: str, whole: int) -> int:
        """Elements of `axis` in this rank's memory, padding included; `whole` is the axis's logical size."""
        intervals = self.owns.get(axis)
        owned = whole if intervals is None else sum(interval.size for interval in intervals)
        return owned + self.padding.get(axis, 0)


class ModulePlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A placement with the path of its module and the sizes of that module's output part on every rank."""

    path: str
    placement: Placement
    parts: tuple[int, ...] = ()


class ShardStrategy(Protocol):
    """Decides who owns what. Returned by the `loadmaster_shard_strategies` hook. All methods are pure."""

    @property
    def name(self) -> str:
        """Unique name, for example `tensor-parallel`."""
        ...

    def check(self, outline: ModelOutline, topology: Topology) -> Sequence[Finding]:
        """Judge a split from the configuration alone. An `error` finding names module, sizes and the sizes that do work."""
        ...

    def place(self, module: ModuleSpec, units: Mapping[str, Unit], topology: Topology, rank: int) -> Placement:
        """Return what `rank` owns of `module`.

        `units` has, for every axis, the finest cut that modules in the same domain allow. Raises PlanError for a style this
        strategy does not know.
        """
        ...
