"""Which parameters can be views of a mapped file: those whose bytes lie there already as the model needs them.

Only what the checkpoint says decides, and whether its source can be mapped at all; so the plan is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from loadmaster_engine.attribution import AttributedFormat
from loadmaster_engine.plan.boxes import Box, intersect, strides
from loadmaster_engine.plan.operations import PlacedPiece, source_origin
from loadmaster_engine.plan.parameters import LocalTensor
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.dtypes import itemsize
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.plan import FileView, PlanSettings
from loadmaster_hookspecs.sources import Source

MAPPED_FILES = 128
"""A mapping holds its file's descriptor for as long as the model lives. A checkpoint of more files than this is copied, since
a process may have no more than about a thousand files open."""


class Mappable(NamedTuple):
    """What the files of a checkpoint's source can do: be mapped at all, and be mapped so that tensors may lie in them."""

    at_all: bool
    for_tensors: bool


def mappable(host: PluginHost, index: CheckpointIndex, source: Source) -> Mappable:
    """Return what the checkpoint's source can map, judged by its first file."""
    reader = AttributedFormat(host, host.format(index.format)).reader(source, index.files[0])
    try:
        mapping = reader.mapping()
        return Mappable(mapping is not None, mapping is not None and not mapping.readonly)
    finally:
        reader.close()


def wants_views(index: CheckpointIndex, settings: PlanSettings) -> bool:
    """Return whether parameters become views where they can: on the CPU, unless a copying mode was asked for."""
    return settings.device == "cpu" and settings.read_mode in ("auto", "mapped") and len(index.files) <= MAPPED_FILES


def file_view(local: LocalTensor, pieces: Sequence[PlacedPiece], *, strided: bool) -> FileView | None:
    """Return where the rank's whole parameter lies in a file, or None where it has to be copied.

    It has to when it is padded, joined from several parts, of another type in the file, not aligned to its element size there,
    or rewritten in memory; and when it is not one contiguous range, unless `strided`.
    """
    if local.layout.scratched or local.layout.staged:
        return None
    box = _one_box(local)
    piece = next((piece for piece in pieces if box and intersect(piece.box, box) == box), None)
    if box is None or piece is None or piece.tensor.dtype != local.dtype:
        return None
    start, steps = source_origin(piece, box)
    offset = piece.tensor.start + start * itemsize(local.dtype)
    if offset % itemsize(local.dtype):
        return None
    by_dim = dict(zip(piece.dims, steps, strict=True))
    dense = strides(local.shape)
    # A dimension of one element has no next one: its stride is free, and the dense one keeps the view contiguous.
    placed = tuple(by_dim.get(dim, dense[dim]) if extent > 1 else dense[dim] for dim, extent in enumerate(local.shape))
    if placed != dense and not strided:
        return None
    return FileView(piece.tensor.file, offset, placed)


def _one_box(local: LocalTensor) -> Box | None:
    """Return the box of the full parameter that the rank's blocks make up together, or None where they are not one box."""
    shifts = {tuple(start - at for (start, _), at in zip(block.box, block.origin, strict=True)) for block in local.blocks}
    if len(shifts) != 1 or local.nbytes == 0 or local.filled * itemsize(local.dtype) != local.nbytes:
        return None
    (shift,) = shifts
    return tuple((start, start + extent) for start, extent in zip(shift, local.shape, strict=True))
