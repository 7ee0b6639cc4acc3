"""From a model of plain weights to one whose quantised weights are the tensors that the file really holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from loadmaster_engine.plan.claims import Claimed, Claims
from loadmaster_engine.plan.operations import PlacedPiece, place_piece
from loadmaster_engine.plan.packing import SEGMENT, Packing, agreed, mixed, pack, stored_piece
from loadmaster_engine.plan.parameters import parameter_name
from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.findings import Ignored
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import ModelSpec, ModuleSpec, Piece


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
                raise mixed(name, "some of them are plain")
            placed = [place_piece(piece, self.claims.shown.tensors[piece.tensor], len(tensor.dims)) for piece in pieces]
            alike = agreed(claimed)
            if alike is not claimed:
                self.generalised |= {piece.tensor: each for piece, each in zip(pieces, alike, strict=True)}
            packing = pack(module, tensor, alike, placed)
            axes |= self._other_axes(packing)
            tensors += [packing.in_model(layout) for layout in packing.layouts]
            tensors += self._expand(module, packing, placed, alike)
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
