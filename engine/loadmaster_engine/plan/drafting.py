"""The base model of a plan, described and placed but without operations: what these, and adapters, are planned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from loadmaster_engine.attribution import AttributedStrategy
from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.plan.adapters import Claimed, PlacedBase, claim_adapters, prepare_merge
from loadmaster_engine.plan.claims import MAX_VALUES, claim_matrices
from loadmaster_engine.plan.completeness import check_missing, check_unexpected
from loadmaster_engine.plan.element_types import resolve_dtype
from loadmaster_engine.plan.expansion import expand
from loadmaster_engine.plan.kernels import choose_kernels
from loadmaster_engine.plan.operations import PlacedPiece
from loadmaster_engine.plan.parameters import parameter_name
from loadmaster_engine.plan.placements import place_modules
from loadmaster_engine.plan.preflight import STRATEGY, preflight, topology_of
from loadmaster_engine.plan.ties import Ties, resolve_ties
from loadmaster_engine.plan.views import Mappable, mappable
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.small_files import SmallFiles
from loadmaster_hookspecs.findings import Finding, Ignored
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.models import ModelOutline, ModelSpec
from loadmaster_hookspecs.plan import PlanSettings
from loadmaster_hookspecs.quantization import PackedMatrix
from loadmaster_hookspecs.sharding import ModulePlacement
from loadmaster_hookspecs.sources import Source


@dataclass(frozen=True)
class Draft:
    """What all ranks' operations are made from."""

    spec: ModelSpec
    index: CheckpointIndex
    settings: PlanSettings
    dtype: str
    ties: Ties
    placements: Sequence[Sequence[ModulePlacement]]
    packed: Sequence[tuple[PackedMatrix, ...]]
    mappable: Mappable
    placed: dict[str, list[PlacedPiece]] = field(default_factory=dict)
    """Pieces by parameter, filled as they are asked for: every rank needs the same ones, several times."""


class Base(NamedTuple):
    """A base model on the way to its plan.

    `spec` has its modules as adapters see them, before kernels take theirs, and `plain` as they would be if no weight were
    quantised. `merging` are the adapters that change its weights.
    """

    spec: ModelSpec
    plain: ModelSpec
    draft: Draft
    family: str
    outline: ModelOutline
    ignored: Sequence[Ignored]
    findings: tuple[Finding, ...]
    bytes_read: int
    merging: tuple[Claimed, ...] = ()


def draft_base(
    host: PluginHost, index: CheckpointIndex, settings: PlanSettings, adapters: Sequence[AdapterRequest] = ()
) -> Base:
    """Return what operations are made from, and what adapters are planned on. Merging needs to know the adapters.

    Raises what `make_plan` raises for the base model.
    """
    source = host.open_source(index.source)
    beside = SmallFiles(source)
    outline = preflight(host, index, settings, beside)
    claims = claim_matrices(host, index, source, beside)
    family = host.match_family(index.config)
    with host.attributed(family, f"describe of model family {family.name}"):
        described = family.describe(claims.shown)
    spec, packings = expand(described, claims, index, lambda name: _is_zero(index, source, name))
    ties = resolve_ties(spec, index, source, untie=settings.untie)
    parameters = [parameter_name(module, tensor) for module in spec.modules for tensor in module.tensors]
    check_missing(spec, index, parameters, ties.aliases)
    ignored, unexpected = check_unexpected(spec, strict=settings.strict)
    merging: tuple[Claimed, ...] = ()
    if settings.adapter_mode == "merged":
        merging = claim_adapters(host, adapters, spec, described, merged=True)
        spec, ties = prepare_merge(spec, ties, merging)
    plain = (piece.tensor for pieces in spec.sources.values() for piece in pieces if piece.tensor in claims.shown.tensors)
    dtype, remarks = resolve_dtype(settings.dtype, (index.tensors[name] for name in plain), index.config)
    strategy = AttributedStrategy(host, host.strategy(STRATEGY))
    placements = place_modules(spec.modules, strategy, topology_of(settings))
    modules, packed = choose_kernels(host, spec.modules, packings, placements, settings, dtype)
    kept = msgspec.structs.replace(spec, modules=modules)
    return Base(
        spec=spec,
        plain=described,
        draft=Draft(kept, index, settings, dtype, ties, placements, packed, mappable(host, index, source)),
        family=family.name,
        outline=outline,
        ignored=ignored,
        findings=_findings(index, spec, ties, (*remarks, *claims.findings, *unexpected)),
        bytes_read=index.bytes_read + source.bytes_read,
        merging=merging,
    )


def placed_base(base: Base) -> PlacedBase:
    """Return what the tensors of adapters are cut by."""
    draft = base.draft
    return PlacedBase(draft.spec, base.plain, draft.placements, draft.dtype, draft.settings.adapter_mode == "merged")


def _is_zero(index: CheckpointIndex, source: Source, name: str) -> bool:
    """Return whether all stored bytes of a tensor are zero. No bias is as large as `MAX_VALUES`: what is, is not read."""
    tensor = index.tensors[name]
    return tensor.nbytes <= MAX_VALUES and not any(source.read(index.files[tensor.file].name, tensor.start, tensor.nbytes))


def _findings(index: CheckpointIndex, spec: ModelSpec, ties: Ties, more: Sequence[Finding]) -> tuple[Finding, ...]:
    return (*index.findings, *spec.findings, *ties.findings, *more)
