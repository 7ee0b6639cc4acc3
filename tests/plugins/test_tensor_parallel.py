"""Cuts and placements of the tensor-parallel strategy."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster_hookspecs import PlanError
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import ModelOutline, ModuleSpec
from loadmaster_hookspecs.sharding import Interval, Topology, Unit
from loadmaster_plugins.tensor_parallel.cuts import cut_axis, kv_heads, query_heads
from loadmaster_plugins.tensor_parallel.strategy import TensorParallel


def outline(heads: int, kv: int, **widths: int) -> ModelOutline:
    return ModelOutline(
        architecture="LlamaForCausalLM",
        hidden_size=heads * 8,
        num_layers=1,
        vocab_size=100,
        query_heads=heads,
        kv_heads=kv,
        head_dim=8,
        widths=widths,
    )


def test_nine_heads_over_two_ranks_keep_their_groups() -> None:
    two = Topology(tensor_parallel=2)
    assert query_heads(9, 3, two) == [Interval(0, 6), Interval(6, 9)]
    assert [kv_heads(part, 3) for part in query_heads(9, 3, two)] == [Interval(0, 2), Interval(2, 3)]


def test_more_ranks_than_key_value_heads_divide_the_query_heads() -> None:
    parts = query_heads(9, 3, Topology(tensor_parallel=4))
    assert parts == [Interval(0, 3), Interval(3, 5), Interval(5, 7), Interval(7, 9)]
    assert [kv_heads(part, 3) for part in parts] == [Interval(0, 1), Interval(1, 2), Interval(1, 3), Interval(2, 3)]


@pytest.mark.parametrize("kv", [28, 4])
def test_equal_ranks_that_do_not_exist_are_refused_with_those_that_do(kv: int) -> None:
    strategy = TensorParallel()
    model = outline(28, kv, intermediate_size=18944)
    assert strategy.check(model, Topology(tensor_parallel=8)) == []
    (finding,) = strategy.check(model, Topology(tensor_parallel=8, equal=True))
    assert finding.level == "error"
    assert finding.code == "LM-PLAN-HEADS"
    assert "28 query heads" in finding.message
    assert "8 ranks" in finding.message
    assert "sizes that work: 1, 2, 4, 7, 14, 28;" in finding.fix
    assert strategy.check(model, Topology(tensor_parallel=7, equal=True)) == []


def test_more_ranks_than_query_heads_are_refused() -> None:
    (finding,) = TensorParallel().check(outline(4, 2), Topology(tensor_parallel=5))
    assert finding.fix == "tensor parallel sizes that work: 1, 2, 3, 4"


@pytest.mark.parametrize(
    ("vocabulary", "ranks", "rows"), [(250, 4, 64), (151552, 6, 25280), (129280, 24, 5440), (128257, 2, 64192)]
)
def test_vocabulary_is_padded_to_whole_blocks_per_rank(vocabulary: int, ranks: int, rows: int) -> None:
    cuts = cut_axis(Unit(count=vocabulary, kind="vocab"), vocabulary, Topology(tensor_parallel=ranks))
    assert [sum(part.size for part in cut.intervals) + cut.padding for cut in cuts] == [rows] * ranks
    assert sum(part.size for cut in cuts for part in cut.intervals) == vocabulary


@given(
    st.integers(1, 4000),
    st.sampled_from([1, 2, 8, 32, 64, 128]),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from(["plain", "vocab"]),
)
def test_cuts_partition_the_axis_at_units(size: int, unit: int, world: int, equal: bool, kind: str) -> None:
    count = -(-size // unit)
    cuts = cut_axis(Unit(size=unit, count=count, kind=kind), size, Topology(tensor_parallel=world, equal=equal))  # type: ignore[arg-type]
    assert cuts[0].intervals[0].start == 0
    assert cuts[-1].intervals[-1].stop == size
    assert all(a.intervals[-1].stop == b.intervals[0].start for a, b in pairwise(cuts))
    if kind == "plain":
        assert all(cut.intervals[-1].stop % unit == 0 or cut.intervals[-1].stop == size for cut in cuts)
    if equal or kind == "vocab":
        assert len({sum(part.size for part in cut.intervals) + cut.padding for cut in cuts}) == 1
    else:
        assert not any(cut.padding for cut in cuts)


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 64), st.booleans())
def test_every_rank_has_the_key_value_heads_of_its_query_heads(groups: int, ratio: int, world: int, equal: bool) -> None:
    heads = groups * ratio
    if world > heads or (equal and heads % world):
        return
    parts = query_heads(heads, ratio, Topology(tensor_parallel=world, equal=equal))
    assert [part.start for part in parts] + [heads] == [0] + [part.stop for part in parts]
    for part in parts:
        keys = kv_heads(part, ratio)
        assert part.size > 0
        assert {head // ratio for head in range(part.start, part.stop)} == set(range(keys.start, keys.stop))
    if world <= groups and not equal:
        assert sum(kv_heads(part, ratio).size for part in parts) == groups


def linear(style: str, units: dict[str, Unit] | None = None) -> ModuleSpec:
    return ModuleSpec(
        path="layers.0.mlp.down",
        kind="linear",
        style=style,
        axes={"out": 8, "in": 10},
        tensors=(
            TensorLayout(name="weight", dims=(AxisMap(axis="out"), AxisMap(axis="in"))),
            TensorLayout(name="bias", dims=(AxisMap(axis="out"),)),
        ),
        units=units or {},
    )


def test_a_row_split_adds_its_bias_once() -> None:
    units = {"in": Unit(count=10)}
    first, second = (TensorParallel().place(linear("rowwise"), units, Topology(tensor_parallel=2), rank) for rank in (0, 1))
    assert (first.zeros, second.zeros) == ((), ("bias",))
    assert first.collective_out == second.collective_out == "sum"
    assert first.owns == {"in": (Interval(0, 5),)}


def test_an_unknown_style_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match="sequence_parallel") as caught:
        TensorParallel().place(linear("sequence_parallel"), {}, Topology(tensor_parallel=2), 0)
    assert caught.value.code == "LM-PLAN-STYLE"
    assert TensorParallel().place(linear("sequence_parallel"), {}, Topology(), 0).owns == {}


@given(st.integers(1, 2000), st.integers(1, 4), st.integers(1, 9))
def test_every_segment_of_a_packed_axis_is_cut_alike(width: int, segments: int, world: int) -> None:
    topology = Topology(tensor_parallel=world)
    cuts = cut_axis(Unit(count=width, segments=segments), width * segments, topology)
    single = cut_axis(Unit(count=width), width, topology)
    for cut, alone in zip(cuts, single, strict=True):
        (part,) = alone.intervals
        starts = [segment * width for segment in range(segments)]
        assert cut.intervals == tuple(Interval(start + part.start, start + part.stop) for start in starts)


def test_a_packed_axis_that_would_need_padding_is_refused() -> None:
    unit = Unit(count=10, segments=2)
    assert [cut.intervals for cut in cut_axis(unit, 20, Topology(tensor_parallel=2, equal=True))] == [
        (Interval(0, 5), Interval(10, 15)),
        (Interval(5, 10), Interval(15, 20)),
    ]
    with pytest.raises(PlanError, match="10 elements in each half") as caught:
        cut_axis(unit, 20, Topology(tensor_parallel=3, equal=True))
    assert caught.value.code == "LM-PLAN-EQUAL"


def test_experts_are_cut_on_every_axis_with_a_unit_and_their_whole_biases_count_once() -> None:
    tensors = {
        "gate_up": ("expert", "packed", "hidden"),
        "down": ("expert", "hidden", "width"),
        "down_bias": ("expert", "hidden"),
    }
    experts = ModuleSpec(
        path="layers.0.mlp.experts",
        kind="experts",
        style="moe_tp_experts",
        axes={"expert": 3, "packed": 12, "hidden": 5, "width": 6},
        tensors=tuple(
            TensorLayout(name=name, dims=tuple(AxisMap(axis=axis) for axis in axes)) for name, axes in tensors.items()
        ),
    )
    units = {"packed": Unit(count=6, segments=2), "width": Unit(count=6)}
    first, second = (TensorParallel().place(experts, units, Topology(tensor_parallel=2), rank) for rank in (0, 1))
    assert first.owns == {"packed": (Interval(0, 3), Interval(6, 9)), "width": (Interval(0, 3),)}
    assert second.owns == {"packed": (Interval(3, 6), Interval(9, 12)), "width": (Interval(3, 6),)}
    assert (first.zeros, second.zeros) == ((), ("down_bias",))
    assert first.collective_out == "sum"


def test_a_module_with_fewer_heads_than_ranks_is_refused() -> None:
    units = {"out": Unit(size=4, count=2, kind="query_heads")}
    with pytest.raises(PlanError, match="2 query heads") as caught:
        TensorParallel().place(linear("colwise"), units, Topology(tensor_parallel=3), 0)
    assert caught.value.code == "LM-PLAN-HEADS"
