"""Adapters in the plan: claimed by their kinds, cut as the modules they belong to, and accounted for byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from loadmaster_engine.plan.adapter_ranks import Fed, leading, plan_ranks
from loadmaster_engine.plan.adapter_results import checked_adapter_claim
from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.plan.completeness import check_pieces
from loadmaster_engine.plan.ledger import settle
from loadmaster_engine.plan.operations import PlacedPiece, place_piece
from loadmaster_engine.plan.parameters import LocalTensor, full_shape, localise
from loadmaster_engine.plan.ties import Ties
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.adapters import AdapterClaim, AdapterModule, AdapterPart, StackedMatrix, StoredAdapter
from loadmaster_hookspecs.errors import PlanError, UsageError
from loadmaster_hookspecs.formats import CheckpointIndex, TensorMeta
from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.models import ModelSpec, ModuleSpec, Piece
from loadmaster_hookspecs.plan import AdapterPlan
from loadmaster_hookspecs.sharding import ModulePlacement, Placement

ROLE = "adapter"
MATRIX = 2


class Claimed(NamedTuple):
    """An adapter, and what its kind says that it does."""

    request: AdapterRequest
    claim: AdapterClaim


class PlacedBase(NamedTuple):
    """What adapters need to know of the planned model: `placements` has one row of modules per rank.

    `plain` is the same model of plain weights alone, module by module.
    """

    spec: ModelSpec
    plain: ModelSpec
    placements: Sequence[Sequence[ModulePlacement]]
    dtype: str
    merged: bool


def claim_adapters(
    host: PluginHost, requests: Sequence[AdapterRequest], spec: ModelSpec, plain: ModelSpec, *, merged: bool
) -> tuple[Claimed, ...]:
    """Let every adapter's kind say what it does to the model; `plain` is the model without quantised weights.

    Raises what the kinds raise for adapters that do not fit, and UsageError or PlanError for what cannot be merged.
    """
    if merged and len(requests) > 1:
        names = ", ".join(request.name for request in requests)
        raise UsageError("LM-USAGE-ADAPTER", "only one adapter can be merged", why=f"given: {names}", hints=["use live mode"])
    pairs = zip(spec.modules, plain.modules, strict=True) if requests else ()
    modules = [_shown(module, whole, plain) for module, whole in pairs]
    claimed = []
    for request in requests:
        kind = host.adapter_kind(request.kind)
        stored = StoredAdapter(name=request.name, config=request.index.config, tensors=request.index.tensors)
        with host.attributed(kind, f"claim of adapter kind {kind.name}"):
            claimed.append(Claimed(request, checked_adapter_claim(kind.claim(stored, modules), stored, modules)))
    if merged:
        _check_mergeable(claimed, modules)
    return tuple(claimed)


def _shown(module: ModuleSpec, whole: ModuleSpec, plain: ModelSpec) -> AdapterModule:
    """Return a module as adapter kinds see it; `whole` is the same one in the model without quantised weights."""
    sides = _sides(module)
    quantised = module.kind == "linear" and all(tensor.name != "weight" for tensor in module.tensors)
    own = [tensor for tensor in module.tensors if "." not in tensor.name and (not quantised or tensor.name == "bias")]
    return AdapterModule(
        path=module.path,
        kind=module.kind if sides or module.kind == "experts" else "other",
        in_features=module.axes[sides["in"]] if sides else 0,
        out_features=module.axes[sides["out"]] if sides else 0,
        parameters={tensor.name: full_shape(module, tensor) for tensor in own},
        packed=_packed(module, whole) if module.kind == "experts" else {},
        quantised=quantised,
        head=module.kind == "linear" and "vocab" in module.axes,
        stacked=dict(_stacked(whole, plain)) if module.kind == "experts" else {},
    )


def _packed(module: ModuleSpec, whole: ModuleSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the stacks in whose place a module has quantised tensors."""
    own = {tensor.name for tensor in module.tensors}
    return {tensor.name: full_shape(whole, tensor) for tensor in whole.tensors if tensor.name not in own}


def _stacked(module: ModuleSpec, spec: ModelSpec) -> Iterator[tuple[str, StackedMatrix]]:
    """Yield the matrices of the checkpoint that a module's stacks consist of, each as it is stored, by their paths there."""
    for tensor in module.tensors:
        columns = full_shape(module, tensor)[-1]
        for piece in spec.sources.get(f"{module.path}.{tensor.name}", ()):
            path, _, last = piece.tensor.rpartition(".")
            whole = piece.dims == (1, 2) and piece.start == (0, 0) and piece.at[2:] == (0,) and piece.extent[1:] == (columns,)
            if last == "weight" and whole:
                index, start = piece.at[:2]
                yield path, StackedMatrix(parameter=tensor.name, index=index, start=start, rows=piece.extent[0])


def _sides(module: ModuleSpec) -> dict[str, str]:
    """Return the module's own names of the axes `in` and `out`, or nothing where it is no linear map."""
    if module.kind not in ("linear", "embedding"):
        return {}
    weight = next((tensor for tensor in module.tensors if tensor.name == "weight" and len(tensor.dims) == MATRIX), None)
    if weight is not None:
        first, second = (dim.axis for dim in weight.dims)
        return {"out": first, "in": second} if module.kind == "linear" else {"in": first, "out": second}
    # What a quantised weight keeps of the plain one are the names of its axes.
    out = "vocab" if "vocab" in module.axes else "out"
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
    ranks = plan_ranks(_tensors(base, index, claim))
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


def _tensors(base: PlacedBase, index: CheckpointIndex, claim: AdapterClaim) -> list[Fed]:
    """Return, for every tensor of an adapter, what each rank holds of it, and the stored tensor that feeds it."""
    numbers = {module.path: number for number, module in enumerate(base.spec.modules)}
    tensors: list[Fed] = []

    def add(row: list[LocalTensor], piece: PlacedPiece) -> None:
        check_pieces(row[0].name, row[0].full_shape, row[0].dtype, [piece], index.files[piece.tensor.file].name)
        tensors.append(Fed(row, piece))

    for part in claim.parts:
        number = numbers[part.path]
        module = adapted(base.spec.modules[number], base.plain.modules[number], part)
        for layout in module.tensors:
            placed = [_placed(layout, rank[number].placement, position) for position, rank in enumerate(base.placements)]
            dtype = layout.dtype or ("F32" if base.merged else base.dtype)
            row = [localise(module, layout, placement, dtype) for placement in placed]
            stored = index.tensors[part.tensors[layout.name]]
            sliced = layout.name in part.leading
            add(row, leading(stored, row[0].full_shape) if sliced else _whole(stored, len(layout.dims)))
    for replacement in claim.replacements:
        number = numbers[replacement.path]
        module = base.spec.modules[number]
        layout = next(tensor for tensor in module.tensors if tensor.name == replacement.name)
        kept = f"{replacement.path}.{replacement.name}" in base.spec.keep_float32
        whole = msgspec.structs.replace(layout, role=ROLE)
        dtype = "F32" if kept else layout.dtype or base.dtype
        row = [localise(module, whole, rank[number].placement, dtype) for rank in base.placements]
        add(row, _whole(index.tensors[replacement.tensor], len(layout.dims)))
    return tensors


def _whole(stored: TensorMeta, ndim: int) -> PlacedPiece:
    return place_piece(Piece(tensor=stored.name), stored, ndim)


def adapted(module: ModuleSpec, whole: ModuleSpec, part: AdapterPart) -> ModuleSpec:
    """Return a module that owns the tensors of an adapter's part, over the axes of the module it changes.

    `whole` is that module in the model without quantised weights, whose axes have the same names.
    """
    sides = _sides(module) | {
        f"{tensor.name}.{number}": dim.axis for tensor in whole.tensors for number, dim in enumerate(tensor.dims)
    }
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
