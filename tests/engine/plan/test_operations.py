"""Operations of random splits, executed on plain arrays, against numpy's own slicing; and the ledger's verdict on them."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster_engine.load.regions import as_array
from loadmaster_engine.plan.arena_layout import lay_out
from loadmaster_engine.plan.ledger import settle
from loadmaster_engine.plan.operations import PlacedPiece, choose_via, fill_ops, place_piece, read_ops
from loadmaster_engine.plan.parameters import LocalTensor, localise
from loadmaster_engine.plan.sharing import mark_repeated, split_overlaps
from loadmaster_hookspecs import IntegrityError
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef, TensorMeta
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import ModuleSpec, Piece
from loadmaster_hookspecs.plan import RankPlan, ReadVia, Region
from loadmaster_hookspecs.sharding import Interval, Placement

Array = npt.NDArray[np.uint8]


def module(*sizes: int) -> ModuleSpec:
    axes = {f"a{dim}": size for dim, size in enumerate(sizes)}
    dims = tuple(AxisMap(axis=axis) for axis in axes)
    return ModuleSpec(path="m", kind="other", style="", axes=axes, tensors=(TensorLayout(name="w", dims=dims),))


def stored(name: str, shape: tuple[int, ...], start: int) -> TensorMeta:
    return TensorMeta(name=name, dtype="U8", shape=shape, file=0, start=start, stop=start + int(np.prod(shape)))


def index_of(*metas: TensorMeta) -> CheckpointIndex:
    return CheckpointIndex(
        source="s",
        format="f",
        files=(FileRef(id=0, name="x", size=max(m.stop for m in metas), header_bytes=0, header_sha256=""),),
        tensors={meta.name: meta for meta in metas},
        config={},
        fingerprint="",
    )


def plan_ranks(ranks: list[LocalTensor], pieces: list[PlacedPiece]) -> list[RankPlan]:
    ranks = split_overlaps(ranks)
    layouts = [lay_out([local], {}, {}) for local in ranks]

    def via(source: Region, dest: Region) -> ReadVia:
        return choose_via(source, dest, "auto", mappable=True)

    reads = mark_repeated([list(read_ops(local, pieces, 0, None, via)) for local in ranks], gather=True)
    return [
        RankPlan(
            rank=rank,
            bytes=layouts[rank][1],
            reads=reads[rank],
            fills=tuple(fill_ops(local, 0)) if layouts[rank][1] else (),
            bindings=layouts[rank][0],
        )
        for rank, local in enumerate(ranks)
    ]


def execute(plan: RankPlan, file: bytes) -> Array:
    """Carry out a plan on memory that is full of rubbish."""
    arena = np.full(plan.bytes, 0xEE, dtype=np.uint8)
    for op in plan.reads:
        as_array(arena.data, op.dest)[...] = as_array(memoryview(file), op.source)
    for fill in plan.fills:
        as_array(arena.data, fill.dest)[...] = 0
    return arena.reshape(plan.bindings[0].shape)


@st.composite
def splits(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Placement]]:
    """A shape, and placements of one to four ranks that cut one axis, with overlaps and padding now and then."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    dim = draw(st.integers(0, len(shape) - 1))
    world = draw(st.integers(1, 4))
    points = sorted(draw(st.lists(st.integers(0, shape[dim]), min_size=world - 1, max_size=world - 1)))
    edges = [0, *points, shape[dim]]
    overlap = draw(st.integers(0, 2))
    placements = []
    for rank in range(world):
        stop = min(shape[dim], edges[rank + 1] + (overlap if rank + 1 < world else 0))
        padding = draw(st.integers(0, 3))
        placements.append(Placement(owns={f"a{dim}": (Interval(edges[rank], stop),)}, padding={f"a{dim}": padding}))
    return shape, placements


def expected(array: Array, placement: Placement) -> Array:
    (axis,) = placement.owns
    dim = int(axis[1:])
    (interval,) = placement.owns[axis]
    part = np.take(array, range(interval.start, interval.stop), axis=dim)
    return np.pad(part, [(0, placement.padding[axis] if d == dim else 0) for d in range(array.ndim)])


@given(splits())
@settings(max_examples=150, deadline=None)
def test_any_split_loads_what_slicing_gives_and_the_ledger_agrees(case: tuple[tuple[int, ...], list[Placement]]) -> None:
    shape, placements = case
    meta = stored("t", shape, 5)
    file = bytes(5) + np.random.default_rng(0).integers(1, 200, meta.nbytes, dtype=np.uint8).tobytes()
    array = np.frombuffer(file, np.uint8)[5:].reshape(shape)
    spec = module(*shape)
    ranks = [localise(spec, spec.tensors[0], placement, "U8") for placement in placements]
    plans = plan_ranks(ranks, [place_piece(Piece(tensor="t"), meta, len(shape))])
    for plan, placement in zip(plans, placements, strict=True):
        np.testing.assert_array_equal(execute(plan, file), expected(array, placement))
    ledger = settle(index_of(meta), plans, [])
    assert ledger.bytes_unique == meta.nbytes == sum(plan.bytes_charged for plan in plans)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_experts_of_their_own_and_transposed_ones_fill_one_stack(
    experts: int, ranks: int, inner: int, hidden: int, transposed: bool
) -> None:
    width = inner * ranks
    rng = np.random.default_rng(1)
    full = rng.integers(1, 200, (experts, 2 * width, hidden), dtype=np.uint8)
    pieces, metas, file = [], [], b""
    for expert in range(experts):
        for half in (0, 1):
            part = full[expert, half * width : (half + 1) * width]
            part = part.T if transposed else part
            meta = stored(f"{expert}.{half}", part.shape, len(file))
            file += np.ascontiguousarray(part).tobytes()
            piece = Piece(tensor=meta.name, at=(expert, half * width, 0), dims=(2, 1) if transposed else (1, 2))
            pieces.append(place_piece(piece, meta, 3))
            metas.append(meta)
    spec = module(experts, 2 * width, hidden)
    placements = [
        Placement(owns={"a1": (Interval(inner * r, inner * (r + 1)), Interval(width + inner * r, width + inner * (r + 1)))})
        for r in range(ranks)
    ]
    plans = plan_ranks([localise(spec, spec.tensors[0], placement, "U8") for placement in placements], pieces)
    for rank, plan in enumerate(plans):
        halves = full.reshape(experts, 2, width, hidden)[:, :, inner * rank : inner * (rank + 1)]
        np.testing.assert_array_equal(execute(plan, file), halves.reshape(experts, 2 * inner, hidden))
    settle(index_of(*metas), plans, [])


def test_the_ledger_names_a_lost_a_doubled_and_a_stray_operation() -> None:
    meta = stored("t", (6, 4), 0)
    spec = module(6, 4)
    halves = [Placement(owns={"a0": (Interval(0, 3),)}), Placement(owns={"a0": (Interval(3, 6),)})]
    locals_ = [localise(spec, spec.tensors[0], half, "U8") for half in halves]
    first, second = plan_ranks(locals_, [place_piece(Piece(tensor="t"), meta, 2)])
    index = index_of(meta)
    lost = msgspec.structs.replace(second, reads=())
    doubled = msgspec.structs.replace(second, reads=second.reads * 2)
    stray = msgspec.structs.replace(second, reads=(msgspec.structs.replace(second.reads[0], parameter="n"), *second.reads))
    for broken, code, place in [(lost, "HOLE", 0), (doubled, "OVERLAP", 0), (stray, "STRAY", None)]:
        with pytest.raises(IntegrityError) as caught:
            settle(index, [first, broken], [])
        assert caught.value.code == f"LM-LEDGER-{code}"
        assert caught.value.report.where.get("arena byte") == place
    with pytest.raises(IntegrityError) as caught:
        settle(index, [first], [])
    assert caught.value.code == "LM-LEDGER-HOLE"
    assert caught.value.report.where == {"tensor": "t", "file": "x", "file byte": 12}
    with pytest.raises(IntegrityError) as caught:
        settle(index_of(meta, stored("u", (1,), 24)), [first, second], [])
    assert caught.value.code == "LM-LEDGER-UNUSED"


def test_only_the_first_reader_is_charged_and_the_rest_comes_from_the_page_cache() -> None:
    meta = stored("t", (4, 2), 0)
    spec = module(4, 2)
    placements = [Placement(owns={"a0": (Interval(0, 3),)}), Placement(owns={"a0": (Interval(2, 4),)})]
    locals_ = [localise(spec, spec.tensors[0], placement, "U8") for placement in placements]
    plans = plan_ranks(locals_, [place_piece(Piece(tensor="t"), meta, 2)])
    assert [(op.source.offset, op.source.nbytes, op.repeated, op.via) for op in plans[1].reads] == [
        (4, 2, True, "gathered"),
        (6, 2, False, "direct"),
    ]
    assert [plan.bytes_planned for plan in plans] == [6, 4]
    assert [plan.bytes_charged for plan in plans] == [6, 2]
