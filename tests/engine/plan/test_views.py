"""Parameters as views of a file: what may be one, that the view shows what slicing gives, and that the ledger proves it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster_engine.load.mapped import tensor_view
from loadmaster_engine.plan.arena_layout import lay_out
from loadmaster_engine.plan.ledger import settle
from loadmaster_engine.plan.operations import choose_via, place_piece, read_ops
from loadmaster_engine.plan.parameters import LocalTensor, localise
from loadmaster_engine.plan.sharing import mark_repeated, split_overlaps
from loadmaster_engine.plan.views import file_view
from loadmaster_hookspecs import IntegrityError
from loadmaster_hookspecs.dtypes import itemsize
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef, TensorMeta
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import ModuleSpec, Piece
from loadmaster_hookspecs.plan import FileView, RankPlan, ReadVia, Region
from loadmaster_hookspecs.sharding import Interval, Placement

SHAPE = (6, 4)


def module(shape: tuple[int, ...]) -> ModuleSpec:
    axes = {f"a{dim}": size for dim, size in enumerate(shape)}
    dims = tuple(AxisMap(axis=axis) for axis in axes)
    return ModuleSpec(path="m", kind="other", style="", axes=axes, tensors=(TensorLayout(name="w", dims=dims),))


def tensor(shape: tuple[int, ...], dtype: str, start: int) -> TensorMeta:
    size = int(np.prod(shape)) * itemsize(dtype)
    return TensorMeta(name="t", dtype=dtype, shape=shape, file=0, start=start, stop=start + size)


def local(shape: tuple[int, ...], dtype: str, owns: dict[int, list[tuple[int, int]]], padding: int = 0) -> LocalTensor:
    spec = module(shape)
    placement = Placement(
        owns={f"a{dim}": tuple(Interval(*pair) for pair in pairs) for dim, pairs in owns.items()},
        padding={f"a{dim}": padding for dim in owns},
    )
    return localise(spec, spec.tensors[0], placement, dtype)


def view_of(part: LocalTensor, meta: TensorMeta, *, strided: bool = True, piece: Piece | None = None) -> FileView | None:
    placed = place_piece(piece or Piece(tensor="t"), meta, len(part.full_shape))
    return file_view(part, [placed], strided=strided)


def test_a_contiguous_part_is_a_view_and_a_strided_one_only_on_request() -> None:
    meta = tensor(SHAPE, "F32", 16)
    rows, columns = local(SHAPE, "F32", {0: [(2, 4)]}), local(SHAPE, "F32", {1: [(1, 3)]})
    assert view_of(rows, meta, strided=False) == FileView(0, 16 + 2 * 4 * 4, (4, 1))
    assert view_of(columns, meta, strided=False) is None
    assert view_of(columns, meta) == FileView(0, 16 + 4, (4, 1))


def test_a_transposed_tensor_is_a_view_with_swapped_strides() -> None:
    meta = tensor((4, 6), "F32", 0)
    assert view_of(local(SHAPE, "F32", {}), meta, piece=Piece(tensor="t", dims=(1, 0))) == FileView(0, 0, (1, 6))


@pytest.mark.parametrize(
    ("part", "meta"),
    [
        (local(SHAPE, "F32", {0: [(2, 4)]}, padding=2), tensor(SHAPE, "F32", 0)),
        (local(SHAPE, "F32", {0: [(0, 1), (3, 4)]}), tensor(SHAPE, "F32", 0)),
        (local(SHAPE, "BF16", {}), tensor(SHAPE, "F32", 0)),
        (local(SHAPE, "F32", {}), tensor(SHAPE, "F32", 2)),
        (local(SHAPE, "F32", {0: [(3, 3)]}), tensor(SHAPE, "F32", 0)),
    ],
    ids=["padded", "two parts", "cast", "unaligned", "empty"],
)
def test_what_has_to_be_copied(part: LocalTensor, meta: TensorMeta) -> None:
    assert view_of(part, meta) is None


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], str, list[dict[int, list[tuple[int, int]]]]]:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    dtype = draw(st.sampled_from(["F32", "BF16", "F16", "I64", "U8"]))
    dim = draw(st.integers(0, len(shape) - 1))
    edges = [0, *sorted(draw(st.lists(st.integers(0, shape[dim]), max_size=3))), shape[dim]]
    overlap = draw(st.integers(0, 1))
    spans = [(a, min(shape[dim], b + overlap)) for a, b in pairwise(edges)]
    return shape, dtype, [{dim: [span]} for span in spans]


def chooser(view: FileView | None) -> Callable[[Region, Region], ReadVia]:
    return lambda source, dest: "mapped" if view else choose_via(source, dest, "auto", mappable=True)


@given(cases(), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_views_of_any_split_show_what_slicing_gives(
    case: tuple[tuple[int, ...], str, list[dict[int, list[tuple[int, int]]]]], lead: int
) -> None:
    shape, dtype, owns = case
    meta = tensor(shape, dtype, lead * 8)
    file = np.random.default_rng(0).integers(0, 255, meta.stop, dtype=np.uint8)
    whole = file[meta.start :].reshape(*shape, itemsize(dtype))
    parts = split_overlaps([local(shape, dtype, own) for own in owns])
    views = [view_of(part, meta) for part in parts]
    layouts = [lay_out([part], {}, {"m.w": view} if view else {}) for part, view in zip(parts, views, strict=True)]
    placed = [place_piece(Piece(tensor="t"), meta, len(shape))]
    ops = [list(read_ops(part, placed, 0, None, chooser(view))) for part, view in zip(parts, views, strict=True)]
    ranks = [
        RankPlan(rank=rank, bytes=layouts[rank][1], reads=reads, fills=(), bindings=layouts[rank][0])
        for rank, reads in enumerate(mark_repeated(ops, gather=True))
    ]
    files = (FileRef(id=0, name="x", size=meta.stop, header_bytes=0, header_sha256=""),)
    index = CheckpointIndex(source="s", format="f", files=files, tensors={"t": meta}, config={}, fingerprint="")
    assert settle(index, ranks, []).bytes_unique == meta.nbytes == sum(rank.bytes_charged for rank in ranks)
    for rank, own, view in zip(ranks, owns, views, strict=True):
        ((dim, ((start, stop),)),) = own.items()
        assert (view is None) == (start == stop)
        if view is not None:
            assert rank.bytes == 0
            seen = tensor_view({0: file}, rank.bindings[0], view)
            expected = np.take(whole, range(start, stop), axis=dim)
            assert seen.contiguous().view(-1).view(torch.uint8).numpy().tobytes() == np.ascontiguousarray(expected).tobytes()
            assert file.ctypes.data <= seen.data_ptr() < file.ctypes.data + len(file)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"offset": 36}, "VIEW"),
        ({"strides": (1, 6)}, "VIEW"),
        ({"file": 1}, "VIEW"),
        ({"dest": Region(0, 16)}, "HOLE"),
        ({"via": "direct"}, "VIEW"),
    ],
)
def test_the_ledger_refuses_a_view_of_other_bytes(change: dict[str, object], code: str) -> None:
    meta = tensor(SHAPE, "F32", 32)
    part = local(SHAPE, "F32", {})
    view = view_of(part, meta)
    assert view is not None
    bindings, size, _ = lay_out([part], {}, {"m.w": view})
    (op,) = read_ops(part, [place_piece(Piece(tensor="t"), meta, 2)], 0, None, lambda source, dest: "mapped")
    op_change = {key: value for key, value in change.items() if key in ("dest", "via")}
    view_change = {key: value for key, value in change.items() if key not in op_change}
    binding = msgspec.structs.replace(bindings[0], view=msgspec.structs.replace(view, **view_change))
    rank = RankPlan(rank=0, bytes=size, reads=(msgspec.structs.replace(op, **op_change),), fills=(), bindings=(binding,))
    files = (FileRef(id=0, name="x", size=meta.stop, header_bytes=0, header_sha256=""),)
    index = CheckpointIndex(source="s", format="f", files=files, tensors={"t": meta}, config={}, fingerprint="")
    with pytest.raises(IntegrityError) as caught:
        settle(index, [rank], [])
    assert caught.value.code == f"LM-LEDGER-{code}"
