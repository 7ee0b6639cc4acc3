"""What stands for a quantised parameter: the tensors of its matrices, as parts of the model's module and of what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from loadmaster_engine.plan.claims import Claimed
from loadmaster_engine.plan.operations import PlacedPiece
from loadmaster_engine.plan.parameters import parameter_name
from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import ModuleSpec, Piece

SEGMENT = "segment"

MATRIX = 2
"""Dimensions of a matrix; a stack of them has one more."""


class Packing(NamedTuple):
    """A parameter that quantised matrices stand for.

    `path` is what takes its place in the model: the module of a linear layer, or the parameter of a stack. `prefix` is what the
    names of its tensors begin with below `module`, `lead` the axes before the matrix, `segments` as in `PackedMatrix`.
    """

    path: str
    module: str
    prefix: str
    claimed: Claimed
    lead: tuple[AxisMap, ...]
    out_axis: str
    in_axis: str
    segments: tuple[int, ...]

    @property
    def layouts(self) -> tuple[TensorLayout, ...]:
        """The tensors that stand for the matrix, over the axes `out` and `in`."""
        return self.claimed.layouts

    def axis(self, name: str) -> str:
        """Return the model's name of one of the quantizer's axes."""
        return {"out": self.out_axis, "in": self.in_axis}.get(name, f"{self.prefix}{name}")

    def in_model(self, layout: TensorLayout) -> TensorLayout:
        """Return a tensor of the matrix as a tensor of the model's module."""
        dims = [msgspec.structs.replace(dim, axis=self.axis(dim.axis)) for dim in layout.dims]
        lead = (*self.lead, AxisMap(axis=self.axis(SEGMENT))) if self.by_segment(layout) else self.lead
        return msgspec.structs.replace(layout, name=self.prefix + layout.name, dims=(*lead, *dims), factor=True)

    def by_segment(self, layout: TensorLayout) -> bool:
        """Return whether a tensor has an entry of its own for each segment."""
        return bool(self.segments) and not _along_out(layout)


def _along_out(layout: TensorLayout) -> bool:
    return any(dim.axis == "out" for dim in layout.dims)


def _segments(placed: Sequence[PlacedPiece], claimed: Claimed) -> tuple[int, ...]:
    """Return the borders of the matrices that lie one below the other, or nothing where all tensors run along their rows."""
    if all(map(_along_out, claimed.layouts)):
        return ()
    borders = {border for piece in placed for border in piece.box[-MATRIX]}
    return tuple(sorted(borders)) if len(borders) > MATRIX else ()


def agreed(claimed: Sequence[Claimed]) -> Sequence[Claimed]:
    """Return the claims on the matrices of one parameter, the general ones where only those agree."""
    if all(_kind(each) == _kind(claimed[0]) for each in claimed):
        return claimed
    general = [each.general or each for each in claimed]
    return general if all(_kind(each) == _kind(general[0]) for each in general) else claimed


def pack(module: ModuleSpec, tensor: TensorLayout, claimed: Sequence[Claimed], placed: Sequence[PlacedPiece]) -> Packing:
    """Return what stands for one parameter. Raises PlanError where it cannot, or where its matrices differ in kind."""
    name = parameter_name(module, tensor)
    first = claimed[0]
    for other in claimed[1:]:
        if _kind(other) != _kind(first):
            raise mixed(name, f"{first.prefix} is {_described(first)}, {other.prefix} is {_described(other)}")
    single = module.kind == "linear" and tensor.name == "weight"
    if not single and len(tensor.dims) != MATRIX + 1:
        raise _misplaced(name, first, f"the model has it in a module of kind {module.kind!r}, not in a linear layer")
    *lead, out, inner = tensor.dims
    path = module.path if single else name
    prefix = "" if single else f"{tensor.name}."
    return Packing(path, module.path, prefix, first, tuple(lead), out.axis, inner.axis, _segments(placed, first))


def _kind(claimed: Claimed) -> tuple[object, ...]:
    claim = claimed.claim
    return (claimed.quantizer, claim.bits, claim.group_size, claim.dtype, claim.params, claim.in_features, claimed.layouts)


def _described(claimed: Claimed) -> str:
    claim = claimed.claim
    params = "".join(f", {name} {value}" for name, value in claim.params.items() if value != "")
    groups = f"in groups of {claim.group_size}" if claim.group_size else "in groups that do not lie together"
    return f"{claimed.quantizer} of {claim.bits} bits {groups}, {claim.in_features} columns, decoded as {claim.dtype}{params}"


def stored_piece(piece: PlacedPiece, claimed: Claimed, packing: Packing, layout: TensorLayout, index: CheckpointIndex) -> Piece:
    """Return the piece of one stored tensor that belongs to `piece`, a piece of the plain weight it helps to stand for.

    Raises PlanError where that is no whole number of stored elements.
    """
    ndim = len(piece.box)
    lead = ndim - MATRIX
    if piece.dims != (lead, lead + 1):
        raise _misplaced(piece.tensor.name, claimed, "the model has the matrix transposed")
    name = f"{claimed.prefix}.{layout.name}"
    shape = index.tensors[name].shape
    sides = {"out": 0, "in": 1}
    starts, extents, at = [], [], [low for low, _ in piece.box[:lead]]
    if packing.by_segment(layout):
        at.append(packing.segments.index(piece.box[lead][0]))
    for dim, stored in zip(layout.dims, shape, strict=True):
        if dim.axis not in sides:
            starts.append(0)
            extents.append(stored)
            at.append(0)
            continue
        side = sides[dim.axis]
        low, high = piece.box[lead + side]
        first, whole = piece.start[side], piece.tensor.shape[side]
        last = first + high - low
        if first % dim.per or (last % dim.per and last != whole) or low % dim.per:
            raise _misplaced(name, claimed, f"a part of {high - low} elements from {first} on goes through a stored element")
        starts.append(dim.stored(0, first)[1])
        extents.append((stored if last == whole else dim.stored(0, last)[1]) - starts[-1])
        at.append(dim.stored(0, low)[1])
    dims = tuple(range(len(at) - len(shape), len(at)))
    return Piece(tensor=name, start=tuple(starts), extent=tuple(extents), at=tuple(at), dims=dims)


def mixed(parameter: str, why: str) -> PlanError:
    """Return the error for a parameter whose matrices do not go together."""
    return PlanError(
        "LM-QUANT-MIXED",
        "a parameter is made of matrices that are quantised in different ways",
        where={"parameter": parameter},
        why=why,
    )


def _misplaced(name: str, claimed: Claimed, why: str) -> PlanError:
    return PlanError(
        "LM-QUANT-PLACE",
        "a quantised matrix is used where only a plain weight can be",
        where={"tensor": f"{claimed.prefix}.*", "parameter": name},
        why=why,
    )
