"""The two-way account, computed from the finished operations and not from the reasoning that made them.

For every rank the destinations and fills must tile each parameter exactly. For the checkpoint every byte of every tensor must
be read by some rank, stand for an identical one, or be ignored with a reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from loadmaster_engine.plan.boxes import canonical, strides
from loadmaster_engine.plan.coverage import tiling_fault
from loadmaster_hookspecs.dtypes import itemsize
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.findings import Ignored
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.plan import Binding, FileView, Ledger, RankPlan, ReadOp, Region


def settle(index: CheckpointIndex, ranks: Sequence[RankPlan], ignored: Sequence[Ignored]) -> Ledger:
    """Return the account. Raises IntegrityError LM-LEDGER-HOLE or LM-LEDGER-OVERLAP naming parameter or tensor and byte."""
    for rank in ranks:
        _prove_arena(rank)
    reads = _reads_by_tensor(ranks)
    spoken_for = {name for rank in ranks for op in rank.compares for name in op.tensors}
    reasons = {item.name for item in ignored}
    for name, regions in reads.items():
        _prove_tensor(index, name, regions)
    for name in index.tensors:
        if name not in reads and name not in spoken_for and name not in reasons:
            raise IntegrityError("LM-LEDGER-UNUSED", "a stored tensor is neither read nor ignored", where={"tensor": name})
    used = {name: index.tensors[name].nbytes for name in reads}
    return Ledger(
        parameters=len(ranks[0].bindings),
        tensors=len(index.tensors),
        bytes_unique=sum(used.values()),
        bytes_total=sum(tensor.nbytes for tensor in index.tensors.values()),
        used=used,
        aliased={binding.parameter: binding.alias_of for binding in ranks[0].bindings if binding.alias_of},
        ignored=tuple(ignored),
        roles=tuple(_roles(rank) for rank in ranks),
    )


def _prove_arena(rank: RankPlan) -> None:
    """Prove that operations fill every parameter of the rank exactly, and that parameters do not overlap.

    Those that kernels compute have a place, and no operation.
    """
    regions: dict[str, list[Region]] = defaultdict(list)
    reads: dict[str, list[ReadOp]] = defaultdict(list)
    for read in rank.reads:
        reads[read.parameter].append(read)
        regions[read.parameter].append(read.dest)
    for fill in rank.fills:
        regions[fill.parameter].append(fill.dest)
    end = 0
    for binding in rank.bindings:
        if binding.alias_of:
            continue
        where: dict[str, str | int] = {"rank": rank.rank, "parameter": binding.parameter}
        if binding.view is not None:
            _prove_view(binding, binding.view, reads[binding.parameter], regions.pop(binding.parameter, []), where)
            continue
        if binding.offset < end or binding.offset + binding.nbytes > rank.bytes + rank.staging:
            raise IntegrityError("LM-LEDGER-ARENA", "a parameter overlaps another or leaves the arena", where=where)
        end = binding.offset + binding.nbytes
        own = regions.pop(binding.parameter, [])
        fault = tiling_fault(own, binding.offset, end) if binding.nbytes and not binding.computed else None
        if fault:
            raise _fault_error(fault, where, "arena byte")
    if regions:
        raise IntegrityError("LM-LEDGER-STRAY", "an operation fills no parameter", where={"parameter": next(iter(regions))})


def _prove_view(
    binding: Binding,
    view: FileView,
    reads: Sequence[ReadOp],
    regions: Sequence[Region],
    where: Mapping[str, str | int],
) -> None:
    """Prove that mapped operations make up the whole parameter, and that its view finds each where it lies in the file."""
    fault = tiling_fault(regions, 0, binding.nbytes)
    if fault:
        raise _fault_error(fault, where, "byte")
    for op in reads:
        astray = any(_in_file(binding, view, dest) != source for dest, source in _probes(binding, op))
        if op.via != "mapped" or op.file != view.file or astray:
            raise IntegrityError("LM-LEDGER-VIEW", "a mapped parameter is a view of other bytes than planned", where=where)


def _probes(binding: Binding, op: ReadOp) -> Iterator[tuple[int, int]]:
    """Yield (byte of the parameter, byte of the file): where an operation begins, and one step on along each of its sides.

    Both sides are boxes of evenly spaced elements, so that where these agree all do.
    """
    size = itemsize(binding.dtype)
    inner = [(step * size, step * size) for step in strides(binding.shape) if step * size < op.dest.run]
    outer = [(dest, source) for (_, dest), (_, source) in zip(op.dest.steps, op.source.steps, strict=True)]
    for dest, source in ((0, 0), *inner, *outer):
        yield op.dest.offset + dest, op.source.offset + source


def _in_file(binding: Binding, view: FileView, byte: int) -> int:
    """Return the byte of the file that is byte `byte` of a mapped parameter, counted as if it were dense."""
    size = itemsize(binding.dtype)
    element, rest = divmod(byte, size)
    at = view.offset + rest
    for step, dense, extent in zip(view.strides, strides(binding.shape), binding.shape, strict=True):
        at += size * step * (element // dense % extent)
    return at


def _prove_tensor(index: CheckpointIndex, name: str, regions: Sequence[Region]) -> None:
    """Prove that the ranks together read every byte of a stored tensor; they may read a byte more than once."""
    tensor = index.tensors[name]
    distinct = list(dict.fromkeys(map(canonical, regions)))
    fault = tiling_fault(distinct, tensor.start, tensor.stop) if tensor.nbytes else None
    if fault:
        raise _fault_error(fault, {"tensor": name, "file": index.files[tensor.file].name}, "file byte")


def _fault_error(fault: tuple[str, int], where: Mapping[str, str | int], unit: str) -> IntegrityError:
    kind, at = fault
    return IntegrityError(
        f"LM-LEDGER-{kind.upper()}",
        f"the plan has {'a hole' if kind == 'hole' else 'an overlap'}",
        where={**where, unit: at},
        why="every byte must be accounted for exactly once",
    )


def _reads_by_tensor(ranks: Sequence[RankPlan]) -> dict[str, list[Region]]:
    reads: dict[str, list[Region]] = defaultdict(list)
    for rank in ranks:
        for op in rank.reads:
            reads[op.tensor].append(op.source)
    return reads


def _roles(rank: RankPlan) -> dict[str, int]:
    """Return the bytes that one rank holds by role, mapped ones included; padding and alignment are roles of their own.

    Staged ones are left out: they are given back before the model serves.
    """
    roles: Counter[str] = Counter()
    for binding in rank.bindings:
        if not binding.alias_of and not binding.staged:
            roles[binding.role] += binding.nbytes
    filled = {binding.parameter: binding.role for binding in rank.bindings if not binding.staged}
    for op in (op for op in rank.fills if op.parameter in filled):
        roles[filled[op.parameter]] -= op.dest.nbytes
        roles["padding"] += op.dest.nbytes
    roles["alignment"] = rank.bytes + rank.bytes_mapped - sum(roles.values())
    return {role: size for role, size in roles.items() if size}
