"""Read and fill operations for one parameter of one rank: blocks meet pieces, and their common boxes become regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from loadmaster_engine.plan.boxes import Box, copy_regions, intersect, strides, volume, whole
from loadmaster_engine.plan.parameters import Block, LocalTensor
from loadmaster_hookspecs.dtypes import itemsize
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_hookspecs.models import Piece
from loadmaster_hookspecs.plan import FillOp, ReadMode, ReadOp, ReadVia, Region, TransformRef


class PlacedPiece(NamedTuple):
    """A piece with its defaults filled in: a box of the stored tensor, and the same box in the full parameter."""

    tensor: TensorMeta
    start: tuple[int, ...]
    box: Box
    dims: tuple[int, ...]


def place_piece(piece: Piece, tensor: TensorMeta, ndim: int) -> PlacedPiece:
    """Return the piece with explicit boxes for a parameter of `ndim` dimensions."""
    dims = piece.dims or tuple(range(ndim - len(tensor.shape), ndim))
    extent = piece.extent or tensor.shape
    at = piece.at or (0,) * ndim
    sizes = dict(zip(dims, extent, strict=True))
    box = tuple((begin, begin + sizes.get(dim, 1)) for dim, begin in enumerate(at))
    return PlacedPiece(tensor, piece.start or (0,) * len(tensor.shape), box, dims)


def read_ops(
    local: LocalTensor,
    pieces: Sequence[PlacedPiece],
    offset: int,
    transform: TransformRef | None,
    via: Callable[[Region, Region], ReadVia],
) -> Iterator[ReadOp]:
    """Yield the operations that fill `local` at byte `offset` of the arena from `pieces`, each read as `via` chooses."""
    for block, piece in product(local.blocks, pieces):
        common = intersect(block.box, piece.box)
        if common is None:
            continue
        source, dest = _regions(local, block, piece, common, offset)
        yield ReadOp(
            tensor=piece.tensor.name,
            parameter=local.name,
            file=piece.tensor.file,
            source=source,
            dest=dest,
            via=via(source, dest),
            transform=transform,
        )


def choose_via(source: Region, dest: Region, mode: ReadMode, *, mappable: bool, once: bool = False) -> ReadVia:
    """Return how a copy reads: contiguous ranges directly, everything else out of the shared mapping where there is one.

    Without a mapping the range that covers the runs is read: one long read costs less than thousands of short ones. With
    `once` one rank reads it for all, since its parts belong to several.
    """
    if source.contiguous and dest.contiguous and (mode != "gathered" or not mappable):
        return "direct"
    if once and not source.contiguous:
        return "node_once"
    return "gathered" if mappable and mode not in ("overread", "node_once") else "overread"


def fill_ops(local: LocalTensor, offset: int) -> Iterator[FillOp]:
    """Yield the fills for the part of `local` that no block covers: padding at the end of an axis, or all of it."""
    if local.layout.computed:
        return
    if not local.blocks:
        yield FillOp(parameter=local.name, dest=Region(offset, local.nbytes))
        return
    size = itemsize(local.dtype)
    steps = strides(local.shape)
    ends = [
        max(block.origin[dim] + block.box[dim][1] - block.box[dim][0] for block in local.blocks)
        for dim in range(len(local.shape))
    ]
    for dim, (end, extent) in enumerate(zip(ends, local.shape, strict=True)):
        if end == extent:
            continue
        # Dimensions before `dim` are filled up to their data only: their own padding was filled whole already.
        extents = (*ends[:dim], extent - end, *local.shape[dim + 1 :])
        side = (offset + end * steps[dim] * size, steps, size)
        yield FillOp(parameter=local.name, dest=copy_regions(extents, side, side)[1])


def source_region(piece: PlacedPiece, common: Box) -> Region:
    """Return the bytes of the stored tensor that hold `common`, a box in the parameter's coordinates."""
    size = itemsize(piece.tensor.dtype)
    extents, start, steps = _source(piece, common)
    side = (piece.tensor.start + start * size, steps, size)
    return copy_regions(extents, side, side)[0]


def source_origin(piece: PlacedPiece, common: Box) -> tuple[int, tuple[int, ...]]:
    """Return, in elements of the stored tensor, where `common` begins and the strides of the dimensions of `piece.dims`."""
    _, start, steps = _source(piece, common)
    return start, steps


def covered(pieces: Sequence[PlacedPiece], shape: Sequence[int]) -> bool:
    """Return whether the pieces lie inside a parameter of `shape` and have as many elements as it has.

    That they do not overlap is proved later, on bytes, by the ledger.
    """
    boxes = [piece.box for piece in pieces]
    return all(intersect(box, whole(shape)) == box for box in boxes) and sum(map(volume, boxes)) == prod(shape)


def _regions(local: LocalTensor, block: Block, piece: PlacedPiece, common: Box, offset: int) -> tuple[Region, Region]:
    source_size, dest_size = itemsize(piece.tensor.dtype), itemsize(local.dtype)
    extents, start, source_steps = _source(piece, common)
    local_steps = strides(local.shape)
    at = [origin + low - block_low for origin, (low, _), (block_low, _) in zip(block.origin, common, block.box, strict=True)]
    begin = offset + dest_size * sum(index * step for index, step in zip(at, local_steps, strict=True))
    dest_steps = [local_steps[dim] for dim in piece.dims]
    return copy_regions(
        extents, (piece.tensor.start + start * source_size, source_steps, source_size), (begin, dest_steps, dest_size)
    )


def _source(piece: PlacedPiece, common: Box) -> tuple[list[int], int, tuple[int, ...]]:
    """Return extents, first element and strides of `common` within the stored tensor, in stored dimension order."""
    steps = strides(piece.tensor.shape)
    extents = [common[dim][1] - common[dim][0] for dim in piece.dims]
    lows = [begin + common[dim][0] - piece.box[dim][0] for begin, dim in zip(piece.start, piece.dims, strict=True)]
    return extents, sum(low * step for low, step in zip(lows, steps, strict=True)), steps
