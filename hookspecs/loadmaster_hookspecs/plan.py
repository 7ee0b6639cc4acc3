"""The load plan: pure data that says which bytes of which file go to which offset of which arena, for every rank.

Offsets, runs and strides are bytes. A plan holds no callable and no path: it can be printed, compared, stored, sent to a
worker and replayed for one rank. `digest` covers everything that decides the loaded bytes.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from loadmaster_hookspecs.adapters import AdapterMode, AdapterPart, Replacement
from loadmaster_hookspecs.findings import Finding, Ignored
from loadmaster_hookspecs.formats import FileRef
from loadmaster_hookspecs.models import ModelOutline
from loadmaster_hookspecs.quantization import PackedMatrix
from loadmaster_hookspecs.sharding import ModulePlacement

PLAN_VERSION = 3

ReadVia = Literal["mapped", "direct", "gathered", "overread", "node_once"]
"""How bytes travel. `mapped`: not at all, the parameter is a view of the shared file mapping. `direct`: a contiguous range is
read into the arena. `gathered`: strided runs are copied out of the shared file mapping, so that the page cache fetches each
byte from storage once per node. `overread`: the range that covers the runs is read and the runs picked out of it.
`node_once`: the range that covers what all ranks take is read by one of them, into memory that they share, and every rank
copies its runs out of that."""

ReadMode = Literal["auto", "mapped", "direct", "gathered", "overread", "node_once"]
"""What the user asks for. `auto` maps parameters that are contiguous in the file, `mapped` also those that are strided; the
others copy, and prefer the way that they are named after. Where a mode's own way is impossible, the next best is planned."""


class Region(msgspec.Struct, frozen=True, array_like=True):
    """A strided set of byte runs: `run` bytes at `offset`, repeated by every `(count, stride)` of `steps`, outermost first."""

    offset: int
    run: int
    steps: tuple[tuple[int, int], ...] = ()

    @property
    def runs(self) -> int:
        """Number of runs."""
        total = 1
        for count, _ in self.steps:
            total *= count
        return total

    @property
    def nbytes(self) -> int:
        """Bytes in all runs together."""
        return self.run * self.runs

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.offset + self.run + sum((count - 1) * stride for count, stride in self.steps)

    @property
    def contiguous(self) -> bool:
        """Whether the runs follow one another without a gap, so that the region is one range."""
        tight = self.run
        for count, stride in reversed(self.steps):
            if stride != tight:
                return False
            tight *= count
        return True


class TransformRef(msgspec.Struct, frozen=True, kw_only=True):
    """A named, versioned transform that a plugin provides, with its arguments."""

    name: str
    version: int
    args: dict[str, str | int] = {}


class ReadOp(msgspec.Struct, frozen=True, kw_only=True):
    """Move `source` of file `file` to `dest` of the rank's arena.

    Without a transform both regions have the same number of bytes and are walked in the same order. `repeated` marks bytes
    that another rank of the node reads as well: they come out of the page cache and count once per node. Where `via` is
    `mapped` nothing moves, and `dest` counts from the parameter's own first byte as if it were dense.
    """

    tensor: str
    parameter: str
    file: int
    source: Region
    dest: Region
    via: ReadVia
    transform: TransformRef | None = None
    repeated: bool = False


class FillOp(msgspec.Struct, frozen=True, kw_only=True):
    """Fill `dest` with zeros: padding, and parts that another rank contributes."""

    parameter: str
    dest: Region


class CompareOp(msgspec.Struct, frozen=True, kw_only=True):
    """Prove that two stored tensors hold the same bytes where this rank needs them, so that one can stand for both.

    `parameter` is the one that was planned as an alias of the other; a difference stops the load.
    """

    parameter: str
    tensors: tuple[str, str]
    files: tuple[int, int]
    sources: tuple[Region, Region]


class FileView(msgspec.Struct, frozen=True, array_like=True):
    """Elements as they lie in a file: the first one at byte `offset`, the next ones `strides` elements apart per dimension."""

    file: int
    offset: int
    strides: tuple[int, ...]


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the rank's model as a view of its arena: `shape` elements of `dtype` from byte `offset` on.

    With a `view` it is a view of a mapped file instead and takes no part of the arena. `alias_of` names the parameter whose
    storage this one shares; such a binding costs no bytes. A `computed` one is filled by the kernel of its matrix after the
    load, a `staged` one lies behind the arena and is gone by then.
    """

    parameter: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    role: str
    alias_of: str = ""
    view: FileView | None = None
    computed: bool = False
    staged: bool = False


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one rank does: reserve `bytes`, execute `reads` and `fills`, bind `bindings`, cut `modules`.

    `bytes` is the exact size of the weight arena; mapped parameters are not in it. `staging` bytes behind it hold what the
    kernels of `packed` matrices take up while they prepare, and are given back then. `scratch` bounds the temporary memory of
    transforms, of ranges from which runs are picked, and the rank's part of the memory through which ranks share bytes.
    """

    rank: int
    bytes: int
    reads: tuple[ReadOp, ...]
    fills: tuple[FillOp, ...]
    bindings: tuple[Binding, ...]
    compares: tuple[CompareOp, ...] = ()
    modules: tuple[ModulePlacement, ...] = ()
    packed: tuple[PackedMatrix, ...] = ()
    staging: int = 0
    scratch: int = 0

    @property
    def bytes_planned(self) -> int:
        """Bytes this rank takes out of files for its parameters, repeated ones included."""
        return sum(op.source.nbytes for op in self.reads)

    @property
    def bytes_mapped(self) -> int:
        """Bytes of parameters that are views of mapped files, shared ones counted once."""
        return sum(binding.nbytes for binding in self.bindings if binding.view and not binding.alias_of)

    @property
    def bytes_charged(self) -> int:
        """Bytes this rank brings into the node: `bytes_planned` without the repeated ones."""
        return sum(op.source.nbytes for op in self.reads if not op.repeated)


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The two-way account: where every parameter comes from, and what became of every stored tensor.

    `used` maps stored tensors to the bytes read of them at least once; `aliased` parameters to the one they share;
    `ignored` lists tensors left out with the reason; `roles` the bytes per role and rank, mapped ones included.
    """

    parameters: int
    tensors: int
    bytes_unique: int
    bytes_total: int
    used: dict[str, int]
    aliased: dict[str, str] = {}
    ignored: tuple[Ignored, ...] = ()
    roles: tuple[dict[str, int], ...] = ()


class PlanSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user asked for; part of the digest.

    `strict` refuses tensors that feed nothing; `untie` gives a tied parameter that the file also stores its own storage;
    `kernel` is the name of the kernel for quantised matrices, or `auto`. `adapter_mode` says what becomes of adapters.
    """

    tensor_parallel: int = 1
    dtype: str = "auto"
    device: str = "cpu"
    read_mode: ReadMode = "auto"
    equal_ranks: bool = False
    strict: bool = False
    untie: bool = False
    kernel: str = "auto"
    adapter_mode: AdapterMode = "live"


class AdapterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How all ranks load one adapter: from its own files into an arena of its own, cut as the base model is.

    `fingerprint` is that of its files and configuration. Each of `ranks` fills the tensors of `parts`, which are called
    `PATH.ROLE`, and of `replacements`, which have the names of the parameters they replace.
    """

    name: str
    kind: str
    source: str
    format: str
    fingerprint: str
    summary: str
    files: tuple[FileRef, ...]
    parts: tuple[AdapterPart, ...]
    replacements: tuple[Replacement, ...]
    ranks: tuple[RankPlan, ...]
    ledger: Ledger


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A complete plan for all ranks. `source` is where it was made from and is not part of the digest."""

    version: int = PLAN_VERSION
    source: str
    format: str
    family: str
    strategy: str
    settings: PlanSettings
    dtype: str
    fingerprint: str
    outline: ModelOutline
    config: dict[str, Any]
    files: tuple[FileRef, ...]
    ranks: tuple[RankPlan, ...]
    ledger: Ledger
    adapters: tuple[AdapterPlan, ...] = ()
    findings: tuple[Finding, ...] = ()
    bytes_read_to_plan: int = 0
    digest: str = ""
