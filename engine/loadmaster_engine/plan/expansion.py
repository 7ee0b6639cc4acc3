"""From a model of plain weights to one whose quantised weights are the tensors that the file really holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from loadmaster_engine.plan.claims import Claimed, Claims
from loadmaster_engine.plan.operations import PlacedPiece, place_piece
from loadmaster_engine.plan.parameters import parameter_name
from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.findings import Ignored
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import ModelSpec, ModuleSpec, Piece

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


class Expanded(NamedTuple):
    """The model with quantised parameters, and what stands for each."""

    spec: ModelSpec
    packings: tuple[Packing, ...]


def expand(spec: ModelSpec, claims: Claims, index: CheckpointIndex, is_zero: Callable[[str], bool]) -> Expanded:
    """Put the claimed tensors in the place of the weights that the family was shown.

    `is_zero` tells whether all bytes of a stored tensor are zero. Raises PlanError LM-QUANT-PLACE for a quantised matrix where
    the model computes with something else than whole matrices, LM-QUANT-MIXED where one parameter would be made of matrices
    that are quantised in different ways.
    """
    if not claims.by_weight:
        return Expanded(spec, ())
    work = _Expansion(spec, claims, index, is_zero, dict(spec.sources), set(spec.unexpected))
    modules = tuple(work.module(module) for module in spec.modules)
    stray = [name for name in spec.unexpected if name in work.unexpected]
    expanded = msgspec.structs.replace(
        spec,
        modules=modules,
        sources=work.sources,
        ties={name: target for name, target in spec.ties.items() if not {name, target} & work.replaced},
        ignored=(*spec.ignored, *work.ignored, *_known({**claims.by_weight, **work.generalised}.values())),
        unexpected=tuple(member for name in stray for member in _members(claims, name)),
    )
    return Expanded(expanded, tuple(work.packings))


def _members(claims: Claims, name: str) -> Sequence[str]:
    """Return the stored tensors behind a name that the family was shown."""
    claimed = claims.by_weight.get(name)
    return [name] if claimed is None else [f"{claimed.prefix}.{suffix}" for suffix in claimed.claim.suffixes]


def _known(claims: Iterable[Claimed]) -> list[Ignored]:
    """Return the claimed tensors that nobody needs any more: what they say is in the claim."""
    return [
        Ignored(name=f"{claimed.prefix}.{suffix}", reason=f"its content is known to {claimed.quantizer} without keeping it")
        for claimed in claims
        for suffix in claimed.claim.suffixes
        if suffix not in {layout.name for layout in claimed.layouts}
    ]


@dataclass
class _Expansion:
    """The state of one expansion: the sources as they become, and what was found on the way."""

    spec: ModelSpec
    claims: Claims
    index: CheckpointIndex
    is_zero: Callable[[str], bool]
    sources: dict[str, tuple[Piece, ...]]
    unexpected: set[str]
    packings: list[Packing] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    ignored: list[Ignored] = field(default_factory=list)
    generalised: dict[str, Claimed] = field(default_factory=dict)

    def module(self, module: ModuleSpec) -> ModuleSpec:
        """Return the module with its quantised tensors in the place of the weights they stand for."""
        tensors: list[TensorLayout] = []
        axes = dict(module.axes)
        for tensor in module.tensors:
            name = parameter_name(module, tensor)
            pieces = self.sources.get(name, ())
            claimed = [self.claims.by_weight[piece.tensor] for piece in pieces if piece.tensor in self.claims.by_weight]
            if not claimed:
                tensors.append(tensor)
                continue
            if len(claimed) < len(pieces):
                raise _mixed(name, "some of them are plain")
            placed = [place_piece(piece, self.claims.shown.tensors[piece.tensor], len(tensor.dims)) for piece in pieces]
            agreed = _agreed(claimed)
            if agreed is not claimed:
                self.generalised |= {piece.tensor: each for piece, each in zip(pieces, agreed, strict=True)}
            packing = _packing(module, tensor, agreed, placed)
            axes |= self._other_axes(packing)
            tensors += [packing.in_model(layout) for layout in packing.layouts]
            tensors += self._expand(module, packing, placed, agreed)
            self.packings.append(packing)
        return msgspec.structs.replace(module, tensors=tuple(tensors), axes=axes)

    def _other_axes(self, packing: Packing) -> dict[str, int]:
        """Return the sizes of the axes that are neither rows nor columns: as long as they are stored."""
        found = {packing.axis(SEGMENT): len(packing.segments) - 1} if packing.segments else {}
        for layout in packing.layouts:
            shape = self.index.tensors[f"{packing.claimed.prefix}.{layout.name}"].shape
            for dim, extent in zip(layout.dims, shape, strict=True):
                if dim.axis not in ("out", "in"):
                    found[packing.axis(dim.axis)] = extent // dim.words * dim.per
        return found

    def _expand(
        self, module: ModuleSpec, packing: Packing, placed: Sequence[PlacedPiece], claimed: Sequence[Claimed]
    ) -> list[TensorLayout]:
        """Feed the matrix's tensors and return the bias that the file has and the model's own code does not, if any."""
        weight = f"{module.path}.{packing.prefix.rstrip('.') or 'weight'}"
        del self.sources[weight]
        self.replaced.add(weight)
        for layout in packing.layouts:
            name = f"{module.path}.{packing.prefix}{layout.name}"
            pairs = zip(placed, claimed, strict=True)
            self.sources[name] = tuple(stored_piece(piece, each, packing, layout, self.index) for piece, each in pairs)
        return self._bias(module, packing, placed, claimed)

    def _bias(
        self, module: ModuleSpec, packing: Packing, placed: Sequence[PlacedPiece], claimed: Sequence[Claimed]
    ) -> list[TensorLayout]:
        """Some producers write a bias for every matrix. It is added where a module can; zeros may be left out elsewhere."""
        names = [name for each in claimed if (name := f"{each.prefix}.bias") in self.unexpected]
        if not names:
            return []
        self.unexpected.difference_update(names)
        if packing.lead or len(names) < len(claimed):
            if not all(self.is_zero(name) for name in names):
                raise PlanError(
                    "LM-QUANT-BIAS",
                    "a quantised matrix has a bias where the model adds none",
                    where={"tensor": names[0], "module": module.path},
                    hints=["the configuration and the weights are of different models: compare their versions"],
                )
            self.ignored += (Ignored(name=name, reason="a bias of zeros") for name in names)
            return []
        self.sources[f"{module.path}.bias"] = tuple(
            Piece(tensor=f"{each.prefix}.bias", at=(piece.box[0][0],)) for piece, each in zip(placed, claimed, strict=True)
        )
        return [TensorLayout(name="bias", dims=(AxisMap(axis=packing.out_axis),))]


def _along_out(layout: TensorLayout) -> bool:
    return any(dim.axis == "out" for dim in layout.dims)


def _segments(placed: Sequence[PlacedPiece], claimed: Claimed) -> tuple[int, ...]:
    """Return the borders of the matrices that lie one below the other, or nothing where all tensors run along their rows."""
    if all(map(_along_out, claimed.layouts)):
        return ()
    borders = {border for piece in placed for border in piece.box[-MATRIX]}
    return tuple(sorted(borders)) if len(borders) > MATRIX else ()


def _agreed(claimed: Sequence[Claimed]) -> Sequence[Claimed]:
    """Return the claims on the matrices of one parameter, the general ones where only those agree."""
    if all(_kind(each) == _kind(claimed[0]) for each in claimed):
        return claimed
    general = [each.general or each for each in claimed]
    return general if all(_kind(each) == _kind(general[0]) for each in general) else claimed


def _packing(module: ModuleSpec, tensor: TensorLayout, claimed: Sequence[Claimed], placed: Sequence[PlacedPiece]) -> Packing:
    """Return what stands for one parameter. Raises PlanError where it cannot, or where its matrices differ in kind."""
    name = parameter_name(module, tensor)
    first = claimed[0]
    for other in claimed[1:]:
        if _kind(other) != _kind(first):
            raise _mixed(name, f"{first.prefix} is {_described(first)}, {other.prefix} is {_described(other)}")
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


def _mixed(parameter: str, why: str) -> PlanError:
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
