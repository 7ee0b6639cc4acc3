"""Every rank's operations into an arena that holds the tensors of one adapter alone.

Parts may use the same stored tensor, or the beginning of it. What they use is then read from storage once, and it lies in the
arena once where they are cut alike on every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from loadmaster_engine.plan.arena_layout import lay_out
from loadmaster_engine.plan.element_types import cast_ref
from loadmaster_engine.plan.operations import PlacedPiece, choose_via, fill_ops, place_piece, read_ops
from loadmaster_engine.plan.parameters import LocalTensor
from loadmaster_engine.plan.scratch import SCRATCH
from loadmaster_engine.plan.sharing import mark_repeated, split_overlaps
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_hookspecs.models import Piece
from loadmaster_hookspecs.plan import FillOp, RankPlan, ReadOp


class Fed(NamedTuple):
    """A tensor of an adapter as every rank holds it, and the stored tensor that feeds it."""

    row: Sequence[LocalTensor]
    piece: PlacedPiece

    @property
    def name(self) -> str:
        """The tensor's name in the plan."""
        return self.row[0].name


def leading(stored: TensorMeta, shape: tuple[int, ...]) -> PlacedPiece:
    """Return the first indices of a stored tensor, in every dimension as many as `shape` has, or all where those are fewer."""
    if len(stored.shape) != len(shape):
        return place_piece(Piece(tensor=stored.name), stored, len(shape))
    extent = tuple(map(min, stored.shape, shape))
    return place_piece(Piece(tensor=stored.name, extent=extent), stored, len(shape))


def plan_ranks(tensors: Sequence[Fed]) -> tuple[RankPlan, ...]:
    """Return the plan of every rank."""
    groups = [_split(group) for group in _by_stored(tensors)]
    aliases = {name: target for group in groups for name, target in _aliases(group).items()}
    rows = {fed.name: fed.row for group in groups for fed in group}
    in_order = [rows[fed.name] for fed in tensors]
    layouts = [lay_out(locals_, aliases, {}) for locals_ in zip(*in_order, strict=True)]
    places = [{binding.parameter: binding.offset for binding in layout.bindings} for layout in layouts]
    reads: list[list[ReadOp]] = [[] for _ in layouts]
    fills: list[list[FillOp]] = [[] for _ in layouts]
    for group in groups:
        readers = [(rank, fed) for rank in range(len(layouts)) for fed in group if fed.name not in aliases]
        ops = [_reads(fed, rank, places[rank][fed.name]) for rank, fed in readers]
        for (rank, fed), marked in zip(readers, mark_repeated(ops, gather=True), strict=True):
            reads[rank] += marked
            fills[rank] += fill_ops(fed.row[rank], places[rank][fed.name])
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


def _by_stored(tensors: Sequence[Fed]) -> list[list[Fed]]:
    """Return the tensors by the stored one that feeds them, and by how its dimensions run along theirs."""
    groups: dict[tuple[str, tuple[int, ...]], list[Fed]] = defaultdict(list)
    for fed in tensors:
        groups[fed.piece.tensor.name, fed.piece.dims].append(fed)
    return list(groups.values())


def _split(group: Sequence[Fed]) -> list[Fed]:
    """Return tensors that are fed by one, with blocks cut so that any two are the same box or disjoint."""
    ranks = len(group[0].row)
    split = split_overlaps([local for fed in group for local in fed.row])
    return [fed._replace(row=split[ranks * place : ranks * (place + 1)]) for place, fed in enumerate(group)]


def _aliases(group: Sequence[Fed]) -> dict[str, str]:
    """Return which of the tensors that are fed by one are the same as an earlier one on every rank."""
    first: dict[object, str] = {}
    found = {}
    for fed in group:
        cuts = tuple((local.dtype, local.shape, local.blocks) for local in fed.row)
        found[fed.name] = first.setdefault(cuts, fed.name)
    return {name: target for name, target in found.items() if name != target}


def _reads(fed: Fed, rank: int, offset: int) -> list[ReadOp]:
    local = fed.row[rank]
    transform = cast_ref(fed.piece.tensor.dtype, local.dtype)
    return list(read_ops(local, [fed.piece], offset, transform, lambda a, b: choose_via(a, b, "auto", mappable=True)))
