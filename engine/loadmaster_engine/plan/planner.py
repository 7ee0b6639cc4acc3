"""From an index to a sealed plan. Pure but for a few sampled blocks of tied tensors; imports torch only inside the family."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.plan.adapters import Claimed, claim_adapters, plan_adapters
from loadmaster_engine.plan.arena_layout import lay_out
from loadmaster_engine.plan.boxes import intersect
from loadmaster_engine.plan.completeness import check_pieces
from loadmaster_engine.plan.digest import sealed
from loadmaster_engine.plan.drafting import Draft, draft_base, placed_base
from loadmaster_engine.plan.element_types import cast_ref
from loadmaster_engine.plan.exchange import with_shared_scratch
from loadmaster_engine.plan.kernels import AT_ONCE
from loadmaster_engine.plan.ledger import settle
from loadmaster_engine.plan.operations import PlacedPiece, choose_via, fill_ops, place_piece, read_ops, source_region
from loadmaster_engine.plan.parameters import LocalTensor, full_shape, localise, parameter_name
from loadmaster_engine.plan.preflight import STRATEGY
from loadmaster_engine.plan.scratch import SCRATCH
from loadmaster_engine.plan.sharing import mark_repeated, split_overlaps
from loadmaster_engine.plan.views import file_view, wants_views
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.plan import (
    Binding,
    CompareOp,
    FileView,
    FillOp,
    LoadPlan,
    PlanSettings,
    RankPlan,
    ReadOp,
    ReadVia,
    Region,
)
from loadmaster_hookspecs.quantization import PackedMatrix
from loadmaster_hookspecs.sharding import Placement

_WHOLE = Placement()


def make_plan(
    host: PluginHost, index: CheckpointIndex, settings: PlanSettings, adapters: Sequence[AdapterRequest] = ()
) -> LoadPlan:
    """Return the sealed plan for all ranks, the base model's and that of every adapter.

    Raises PlanError when the model cannot be split as asked, and IntegrityError when the checkpoint does not hold exactly
    what the model needs, or an adapter does not fit it. Nothing is allocated.
    """
    base = draft_base(host, index, settings, adapters)
    adapted = base.merging or claim_adapters(host, adapters, base.spec, base.plain, merged=False)
    ranks = _plan_ranks(base.draft)
    planned = plan_adapters(placed_base(base), adapted)
    check_transforms(host, [*ranks, *(rank for adapter in planned for rank in adapter.ranks)])
    remarks = [finding for each in adapted for finding in remarks_on(each)]
    return sealed(
        LoadPlan(
            source=index.source,
            format=index.format,
            family=base.family,
            strategy=STRATEGY,
            settings=settings,
            dtype=base.draft.dtype,
            fingerprint=index.fingerprint,
            outline=base.outline,
            config=index.config,
            files=index.files,
            ranks=ranks,
            ledger=settle(index, ranks, base.ignored),
            adapters=planned,
            findings=(*base.findings, *remarks),
            bytes_read_to_plan=base.bytes_read + sum(each.index.bytes_read for each in adapters),
        )
    )


def remarks_on(adapted: Claimed) -> list[Finding]:
    """Return what format and kind of an adapter noticed, with its name."""
    request, claim = adapted
    return [
        msgspec.structs.replace(finding, message=f"adapter {request.name}: {finding.message}")
        for finding in (*request.index.findings, *claim.findings)
    ]


def check_transforms(host: PluginHost, ranks: Sequence[RankPlan]) -> None:
    """Raise PluginError now, and not in the middle of a load, when no active plugin provides a transform of the plan."""
    for name, version in {(op.transform.name, op.transform.version) for rank in ranks for op in rank.reads if op.transform}:
        host.transform(name, version)


def _plan_ranks(draft: Draft) -> tuple[RankPlan, ...]:
    """Return every rank's plan: layout first, then operations parameter by parameter so that shared bytes are seen."""
    tensors = _local_tensors(draft)
    layouts = [lay_out(row, draft.ties.aliases, _views(draft, row)) for row in zip(*tensors, strict=True)]
    places = [{binding.parameter: binding for binding in layout.bindings} for layout in layouts]
    gather = draft.mappable.at_all and draft.settings.read_mode not in ("direct", "overread", "node_once")
    reads: list[list[ReadOp]] = [[] for _ in layouts]
    fills: list[list[FillOp]] = [[] for _ in layouts]
    compares: list[list[CompareOp]] = [[] for _ in layouts]
    for locals_ in tensors:
        name = locals_[0].name
        if name in draft.ties.aliases:
            for rank, local in enumerate(locals_):
                compares[rank] += _compare_ops(draft, local)
            continue
        ops = [_reads(draft, local, places[rank][name]) for rank, local in enumerate(locals_)]
        for rank, marked in enumerate(mark_repeated(ops, gather=gather, once=_once(draft))):
            reads[rank] += marked
            fills[rank] += fill_ops(locals_[rank], places[rank][name].offset)
    return with_shared_scratch(
        RankPlan(
            rank=rank,
            bytes=layout.nbytes,
            reads=tuple(sorted(reads[rank], key=lambda op: (op.file, op.source.offset))),
            fills=tuple(fills[rank]),
            bindings=layout.bindings,
            compares=tuple(compares[rank]),
            modules=tuple(placed for placed in draft.placements[rank] if placed.placement != _WHOLE),
            packed=draft.packed[rank],
            staging=layout.staging,
            scratch=_scratch(reads[rank], draft.packed[rank], [row[rank] for row in tensors]),
        )
        for rank, layout in enumerate(layouts)
    )


def _once(draft: Draft) -> bool:
    """Return whether bytes for several ranks are read by one of them: on request, and where there is no mapping to share."""
    mode = draft.settings.read_mode
    return draft.settings.tensor_parallel > 1 and (mode == "node_once" or (not draft.mappable.at_all and mode != "overread"))


def _scratch(reads: Sequence[ReadOp], packed: Sequence[PackedMatrix], tensors: Sequence[LocalTensor]) -> int:
    """Return the bound of one rank's temporary memory.

    While kernels prepare matrices, several at once, as much as the tensors that they rewrite or give back may exist a second
    time, and some tiles. Reading is over by then.
    """
    marked = {tensor.name: tensor.nbytes for tensor in tensors if tensor.layout.scratched or tensor.layout.staged}
    again = max((sum(marked.get(f"{part.path}.{layout.name}", 0) for layout in part.layouts) for part in packed), default=0)
    again *= min(AT_ONCE, len(packed))
    return again + SCRATCH if again or any(op.transform or op.via == "overread" for op in reads) else 0


def _local_tensors(draft: Draft) -> list[list[LocalTensor]]:
    """Return, for every parameter in model order, what each rank holds of it."""
    result = []
    for number, module in enumerate(draft.spec.modules):
        for tensor in module.tensors:
            dtype = _dtype_of(draft, parameter_name(module, tensor), tensor.dtype)
            if not tensor.computed:
                _check(draft, parameter_name(module, tensor), full_shape(module, tensor), dtype)
            row = [localise(module, tensor, rank[number].placement, dtype) for rank in draft.placements]
            result.append(split_overlaps(row))
    return result


def _dtype_of(draft: Draft, parameter: str, declared: str) -> str:
    """Return the element type of one parameter: its own if declared, never narrowed where the family forbids it."""
    if parameter in draft.spec.keep_float32:
        return "F32"
    return declared or draft.dtype


def _pieces(draft: Draft, parameter: str, ndim: int) -> list[PlacedPiece]:
    if parameter not in draft.placed:
        pieces = draft.spec.sources.get(parameter, ())
        draft.placed[parameter] = [place_piece(piece, draft.index.tensors[piece.tensor], ndim) for piece in pieces]
    return draft.placed[parameter]


def _check(draft: Draft, parameter: str, shape: tuple[int, ...], dtype: str) -> None:
    if parameter in draft.ties.aliases:
        return
    pieces = _pieces(draft, parameter, len(shape))
    check_pieces(parameter, shape, dtype, pieces, draft.index.files[pieces[0].tensor.file].name)


def _views(draft: Draft, tensors: Sequence[LocalTensor]) -> dict[str, FileView]:
    """Return the parameters of one rank that are views of mapped files."""
    if not draft.mappable.for_tensors or not wants_views(draft.index, draft.settings):
        return {}
    # A product of one row with a strided view took 1.1 to 1.8 times as long as with a dense copy (docs/reading.md), for every
    # token again: row splits are copied unless views are asked for.
    strided = draft.settings.read_mode == "mapped"
    views = {
        local.name: file_view(local, _pieces(draft, local.name, len(local.full_shape)), strided=strided)
        for local in tensors
        if local.name not in draft.ties.aliases
    }
    return {name: view for name, view in views.items() if view is not None}


def _reads(draft: Draft, local: LocalTensor, place: Binding) -> list[ReadOp]:
    def via(source: Region, dest: Region) -> ReadVia:
        if place.view is not None:
            return "mapped"
        return choose_via(source, dest, draft.settings.read_mode, mappable=draft.mappable.at_all, once=_once(draft))

    ops: list[ReadOp] = []
    for piece in _pieces(draft, local.name, len(local.full_shape)):
        transform = cast_ref(piece.tensor.dtype, local.dtype)
        ops += read_ops(local, [piece], place.offset, transform, via)
    return ops


def _compare_ops(draft: Draft, local: LocalTensor) -> list[CompareOp]:
    """Return the proofs that a tied tensor the file stores too equals the one whose storage it shares."""
    proof = draft.ties.proofs.get(local.name)
    if proof is None:
        return []
    pair = [draft.index.tensors[name] for name in proof]
    ops = []
    for block in local.blocks:
        regions = []
        for tensor in pair:
            piece = _pieces(draft, local.name, len(local.full_shape))[0]._replace(tensor=tensor)
            common = intersect(block.box, piece.box)
            if common is not None:
                regions.append(source_region(piece, common))
        if len(regions) == len(pair):
            ops.append(
                CompareOp(
                    parameter=local.name,
                    tensors=(pair[0].name, pair[1].name),
                    files=(pair[0].file, pair[1].file),
                    sources=(regions[0], regions[1]),
                )
            )
    return ops
