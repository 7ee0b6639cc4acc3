"""Adapters in the plan: claimed by their kinds, cut as the modules they belong to, and accounted for byte by byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.plan.arena_layout import lay_out
from loadmaster_engine.plan.completeness import check_pieces
from loadmaster_engine.plan.element_types import cast_ref
from loadmaster_engine.plan.ledger import settle
from loadmaster_engine.plan.operations import PlacedPiece, choose_via, fill_ops, place_piece, read_ops
from loadmaster_engine.plan.parameters import LocalTensor, full_shape, localise
from loadmaster_engine.plan.sharing import mark_repeated, split_overlaps
from loadmaster_engine.plan.ties import Ties
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.adapters import AdapterClaim, AdapterModule, AdapterPart, StoredAdapter
from loadmaster_hookspecs.errors import PlanError, UsageError
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.models import ModelSpec, ModuleSpec, Piece
from loadmaster_hookspecs.plan import AdapterPlan, FillOp, RankPlan, ReadOp
from loadmaster_hookspecs.sharding import ModulePlacement, Placement

SCRATCH = 16 << 20
"""Bytes of temporary memory for casts, as for the base model."""

ROLE = "adapter"
MATRIX = 2


class Claimed(NamedTuple):
    """An adapter, and what its kind says that it does."""

    request: AdapterRequest
    claim: AdapterClaim


class PlacedBase(NamedTuple):
    """What adapters need to know of the planned model: `placements` has one row of modules per rank."""

    spec: ModelSpec
    placements: Sequence[Sequence[ModulePlacement]]
    dtype: str
    merged: bool


def claim_adapters(
    host: PluginHost, requests: Sequence[AdapterRequest], spec: ModelSpec, *, merged: bool
) -> tuple[Claimed, ...]:
    """Let every adapter's kind say what it does to the model.

    Raises what the kinds raise for adapters that do not fit, and UsageError or PlanError for what cannot be merged.
    """
    if merged and len(requests) > 1:
        names = ", ".join(request.name for request in requests)
        raise UsageError("LM-USAGE-ADAPTER", "only one adapter can be merged", why=f"given: {names}", hints=["use live mode"])
    modules = [_shown(module) for module in spec.modules] if requests else []
    claimed = []
    for request in requests:
        kind = host.adapter_kind(request.kind)
        stored = StoredAdapter(name=request.name, config=request.index.config, tensors=request.index.tensors)
        with host.attributed(kind, f"claim of adapter kind {kind.name}"):
            claimed.append(Claimed(request, kind.claim(stored, modules)))
    if merged:
        _check_mergeable(claimed, modules)
    return tuple(claimed)


def _shown(module: ModuleSpec) -> AdapterModule:
    """Return a module as adapter kinds see it."""
    sides = _sides(module)
    quantised = module.kind == "linear" and all(tensor.name != "weight" for tensor in module.tensors)
    plain = [tensor for tensor in module.tensors if "." not in tensor.name and (not quantised or tensor.name == "bias")]
    return AdapterModule(
        path=module.path,
        kind=module.kind if sides or module.kind == "experts" else "other",
        in_features=module.axes[sides["in"]] if sides else 0,
        out_features=module.axes[sides["out"]] if sides else 0,
        parameters={tensor.name: full_shape(module, tensor) for tensor in plain},
        quantised=quantised,
        head=module.kind == "linear" and "vocab" in module.axes,
    )


def _sides(module: ModuleSpec) -> dict[str, str]:
    """Return the module's own names of the axes `in` and `out`, or nothing where it is no linear map."""
    if module.kind not in ("linear", "embedding"):
        return {}
    weight = next((tensor for tensor in module.tensors if tensor.name == "weight" and len(tensor.dims) == MATRIX), None)
    if weight is not None:
        first, second = (dim.axis for dim in weight.dims)
        return {"out": first, "in": second} if module.kind == "linear" else {"in": first, "out": second}
    out = (
        "vocab" if "vocab" in module.axes else "out"
    )  # what a quantised weight keeps of the plain one are the names of its axes
    return {"out": out, "in": "in"} if {out, "in"} <= module.axes.keys() else {}


def _check_mergeable(claimed: Sequence[Claimed], modules: Sequence[AdapterModule]) -> None:
    by_path = {module.path: module for module in modules}
    for request, claim in claimed:
        for part in claim.parts:
            module = by_path[part.path]
            lacking = [name for name in part.touches if name not in module.parameters]
            if lacking:
                raise PlanError(
                    "LM-ADAPTER-MERGE",
                    "an adapter cannot be merged into this model",
                    where={"adapter": request.name, "module": part.path},
                    why="the weight is quantised" if module.quantised else f"the module has no {lacking[0]} to change",
                    hints=["use live mode: it leaves the base as it is"],
                )


def prepare_merge(spec: ModelSpec, ties: Ties, claimed: Sequence[Claimed]) -> tuple[ModelSpec, Ties]:
    """Return the model with storage of its own, in the arena, for every parameter that merging changes.

    A tied parameter is given its own copy: peft's adapters change one of the two modules.
    """
    touched = {f"{part.path}.{name}" for _, claim in claimed for part in claim.parts for name in part.touches}
    sources, aliases = dict(spec.sources), dict(ties.aliases)
    for alias, target in ties.aliases.items():
        if alias in touched or target in touched:
            del aliases[alias]
            sources[alias] = spec.sources.get(alias) or spec.sources[target]
    modules = tuple(
        msgspec.structs.replace(
            module,
            tensors=tuple(
                msgspec.structs.replace(tensor, scratched=True) if f"{module.path}.{tensor.name}" in touched else tensor
                for tensor in module.tensors
            ),
        )
        for module in spec.modules
    )
    return msgspec.structs.replace(spec, sources=sources, modules=modules), ties._replace(aliases=aliases)


def plan_adapters(base: PlacedBase, claimed: Sequence[Claimed]) -> tuple[AdapterPlan, ...]:
    """Return the plan of every adapter, with its own ledger. Raises IntegrityError for tensors of the wrong shape or type."""
    return tuple(_plan_adapter(base, request, claim) for request, claim in claimed)


def _plan_adapter(base: PlacedBase, request: AdapterRequest, claim: AdapterClaim) -> AdapterPlan:
    index = request.index
    rows, pieces = _tensors(base, index, claim)
    ranks = _ranks(rows, pieces)
    return AdapterPlan(
        name=request.name,
        kind=request.kind,
        source=index.source,
        format=index.format,
        fingerprint=index.fingerprint,
        summary=claim.summary,
        files=index.files,
        parts=claim.parts,
        replacements=claim.replacements,
        ranks=ranks,
        ledger=settle(index, ranks, claim.ignored),
    )


def _tensors(
    base: PlacedBase, index: CheckpointIndex, claim: AdapterClaim
) -> tuple[list[list[LocalTensor]], Mapping[str, PlacedPiece]]:
    """Return, for every tensor of an adapter, what each rank holds of it, and the stored tensor that feeds it."""
    numbers = {module.path: number for number, module in enumerate(base.spec.modules)}
    rows: list[list[LocalTensor]] = []
    pieces: dict[str, PlacedPiece] = {}

    def add(module: ModuleSpec, layout: TensorLayout, stored: str, dtype: str, placements: Sequence[Placement]) -> None:
        row = [localise(module, layout, placement, dtype) for placement in placements]
        piece = place_piece(Piece(tensor=stored), index.tensors[stored], len(layout.dims))
        check_pieces(row[0].name, row[0].full_shape, dtype, [piece], index.files[piece.tensor.file].name)
        pieces[row[0].name] = piece
        rows.append(split_overlaps(row))

    for part in claim.parts:
        number = numbers[part.path]
        module = adapted(base.spec.modules[number], part)
        for layout in module.tensors:
            placed = [_placed(layout, rank[number].placement, position) for position, rank in enumerate(base.placements)]
            dtype = layout.dtype or ("F32" if base.merged else base.dtype)
            add(module, layout, part.tensors[layout.name], dtype, placed)
    for replacement in claim.replacements:
        number = numbers[replacement.path]
        module = base.spec.modules[number]
        layout = next(tensor for tensor in module.tensors if tensor.name == replacement.name)
        kept = f"{replacement.path}.{replacement.name}" in base.spec.keep_float32
        whole = msgspec.structs.replace(layout, role=ROLE)
        dtype = "F32" if kept else layout.dtype or base.dtype
        add(module, whole, replacement.tensor, dtype, [rank[number].placement for rank in base.placements])
    return rows, pieces


def adapted(module: ModuleSpec, part: AdapterPart) -> ModuleSpec:
    """Return a module that owns the tensors of an adapter's part, over the axes of the module it changes."""
    sides = _sides(module)
    others = {f"{ROLE}.{axis}": size for axis, size in part.axes.items()}
    layouts = tuple(
        msgspec.structs.replace(
            layout,
            role=ROLE,
            dims=tuple(msgspec.structs.replace(dim, axis=sides.get(dim.axis, f"{ROLE}.{dim.axis}")) for dim in layout.dims),
        )
        for layout in part.layouts
    )
    return msgspec.structs.replace(module, axes={**module.axes, **others}, tensors=layouts)


def _placed(layout: TensorLayout, placement: Placement, rank: int) -> Placement:
    """Return the module's placement, with zeros for what another rank contributes to a summed result."""
    once = placement.collective_out == "sum" and rank > 0 and not layout.factor
    if not once or any(dim.axis in placement.owns for dim in layout.dims):
        return placement
    return msgspec.structs.replace(placement, zeros=(layout.name,))


def _ranks(rows: Sequence[Sequence[LocalTensor]], pieces: Mapping[str, PlacedPiece]) -> tuple[RankPlan, ...]:
    """Return every rank's operations into an arena that holds the adapter's tensors alone."""
    layouts = [lay_out(tensors, {}, {}) for tensors in zip(*rows, strict=True)]
    places = [{binding.parameter: binding.offset for binding in layout.bindings} for layout in layouts]
    reads: list[list[ReadOp]] = [[] for _ in layouts]
    fills: list[list[FillOp]] = [[] for _ in layouts]
    for row in rows:
        piece = pieces[row[0].name]
        transform = cast_ref(piece.tensor.dtype, row[0].dtype)
        ops = [
            list(read_ops(local, [piece], place[local.name], transform, lambda a, b: choose_via(a, b, "auto", mappable=True)))
            for local, place in zip(row, places, strict=True)
        ]
        for rank, marked in enumerate(mark_repeated(ops, gather=True)):
            reads[rank] += marked
            fills[rank] += fill_ops(row[rank], places[rank][row[rank].name])
    return tuple(
        RankPlan(
            rank=rank,
            bytes=layout.nbytes,
            reads=tuple(sorted(reads[rank], key=lambda op: (op.file, op.source.offset))),
            fills=tuple(fills[rank]),
            bindings=layout.bindings,
            scratch=SCRATCH if any(op.transform for op in reads[rank]) else 0,
        )
        for rank, layout in enumerate(layouts)
    )
