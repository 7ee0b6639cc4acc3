"""Parts of adapters that share a stored tensor: any cuts give what slicing gives, and every byte is read and held once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster_engine.load.regions import as_array
from loadmaster_engine.plan.adapter_ranks import Fed, leading, plan_ranks
from loadmaster_engine.plan.completeness import check_pieces
from loadmaster_engine.plan.ledger import settle
from loadmaster_engine.plan.parameters import localise
from loadmaster_hookspecs import IntegrityError
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef, TensorMeta
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import ModuleSpec
from loadmaster_hookspecs.plan import RankPlan
from loadmaster_hookspecs.sharding import Interval, Placement

Array = npt.NDArray[np.uint8]
Cuts = tuple[int, ...]
LAYOUT = TensorLayout(name="A", dims=(AxisMap(axis="rank"), AxisMap(axis="in")))


def stored(rows: int, columns: int) -> TensorMeta:
    return TensorMeta(name="shared", dtype="U8", shape=(rows, columns), file=0, start=7, stop=7 + rows * columns)


def index_of(meta: TensorMeta) -> CheckpointIndex:
    file = FileRef(id=0, name="x", size=meta.stop, header_bytes=0, header_sha256="")
    return CheckpointIndex(source="s", format="f", files=(file,), tensors={meta.name: meta}, config={}, fingerprint="")


def fed(path: str, meta: TensorMeta, cuts: Cuts) -> Fed:
    """A part that uses `cuts[-1]` columns of the tensor; rank r has those from `cuts[r]` to `cuts[r + 1]`, or all of them."""
    module = ModuleSpec(path=path, kind="linear", style="", axes={"rank": meta.shape[0], "in": cuts[-1]}, tensors=(LAYOUT,))
    owned = [Placement(owns={"in": (Interval(*edges),)}) if cuts[0] == 0 else Placement() for edges in pairwise(cuts)]
    row = [localise(module, LAYOUT, placement, "U8") for placement in owned]
    return Fed(row, leading(meta, row[0].full_shape))


def execute(plan: RankPlan, file: bytes) -> dict[str, Array]:
    arena = np.full(plan.bytes, 0xEE, dtype=np.uint8)
    for op in plan.reads:
        as_array(arena.data, op.dest)[...] = as_array(memoryview(file), op.source)
    return {each.parameter: arena[each.offset : each.offset + each.nbytes].reshape(each.shape) for each in plan.bindings}


@st.composite
def parts(draw: st.DrawFn) -> tuple[int, list[Cuts]]:
    """Rows, and one to five parts cut over the same number of ranks; cuts that begin below zero stand for uncut ones."""
    ranks, rows = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        columns = draw(st.sampled_from([3, 4, 8, 9]))
        inner = sorted(draw(st.lists(st.integers(0, columns), min_size=ranks - 1, max_size=ranks - 1)))
        found.append((draw(st.sampled_from([0, -1])), *inner, columns))
    return rows, found


@given(parts())
@settings(max_examples=150, deadline=None)
def test_any_cuts_give_what_slicing_gives_and_each_byte_is_charged_once(case: tuple[int, list[Cuts]]) -> None:
    rows, cuts = case
    meta = stored(rows, max(each[-1] for each in cuts))
    file = bytes(7) + np.random.default_rng(0).integers(1, 200, meta.nbytes, dtype=np.uint8).tobytes()
    whole = np.frombuffer(file, np.uint8)[7:].reshape(meta.shape)
    plans = plan_ranks([fed(f"m{number}", meta, each) for number, each in enumerate(cuts)])
    for rank, plan in enumerate(plans):
        held = execute(plan, file)
        for number, each in enumerate(cuts):
            edges = slice(each[rank], each[rank + 1]) if each[0] == 0 else slice(0, each[-1])
            np.testing.assert_array_equal(held[f"m{number}.A"], whole[:, edges])
    assert settle(index_of(meta), plans, []).bytes_unique == sum(plan.bytes_charged for plan in plans) == meta.nbytes


def test_what_is_cut_alike_lies_in_memory_once() -> None:
    meta = stored(2, 128)
    tensors = [fed("down", meta, (0, 64, 128)), fed("q", meta, (-1, 32, 64)), fed("up", meta, (-1, 10, 64))]
    plans = plan_ranks(tensors)
    ledger = settle(index_of(meta), plans, [])
    assert ledger.aliased == {"up.A": "q.A"}
    assert [plan.bytes for plan in plans] == [2 * 64 + 2 * 64] * 2
    assert [role["linear"] for role in ledger.roles] == [256, 256]
    assert [plan.bytes_planned for plan in plans] == [256, 256]
    assert [plan.bytes_charged for plan in plans] == [128, 128]


def test_a_stored_tensor_that_is_too_small_is_refused() -> None:
    small = fed("m", stored(2, 8), (0, 9))
    with pytest.raises(IntegrityError) as caught:
        check_pieces(small.name, small.row[0].full_shape, "U8", [small.piece], "x")
    assert caught.value.code == "LM-TENSOR-SHAPE"
    assert "the model needs [2, 9], the file has [2, 8]" in caught.value.report.why
