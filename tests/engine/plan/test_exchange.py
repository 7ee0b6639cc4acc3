"""The rounds in which bytes that several ranks take are read once: nothing missing, nothing twice, nothing too large."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from loadmaster.checkpoints import open_index
from loadmaster.host import PluginHost
from loadmaster_engine.plan import exchange, make_plan
from loadmaster_engine.plan.exchange import Round, cut, rounds, shared_bytes
from loadmaster_engine.plan.scratch import SCRATCH
from loadmaster_engine.plan.shares import FileRange
from loadmaster_hookspecs.plan import LoadPlan, PlanSettings, ReadOp, Region, TransformRef
from tiny_models import make_model, save_model

CAST = TransformRef(name="cast", version=1, args={})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("qwen2", num_key_value_heads=2), tmp_path_factory.mktemp("qwen2"))


def planned(folder: Path, ranks: int, **settings: object) -> LoadPlan:
    host = PluginHost()
    return make_plan(
        host,
        open_index(host, folder),
        PlanSettings(tensor_parallel=ranks, read_mode="node_once", **settings),  # type: ignore[arg-type]
    )


def bytes_of(ranges: tuple[FileRange, ...]) -> set[tuple[int, int]]:
    return {(part.file, byte) for part in ranges for byte in range(part.start, part.stop)}


def bytes_taken(region: Region) -> set[int]:
    places = {region.offset}
    for count, stride in region.steps:
        places = {place + index * stride for place in places for index in range(count)}
    return {byte for place in places for byte in range(place, place + region.run)}


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("limit", [300, 10_000, 1 << 20])
def test_every_byte_that_is_shared_is_read_by_one_rank_in_one_round(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, limit: int
) -> None:
    monkeypatch.setattr(exchange, "ROUND_BYTES", limit)
    plan = planned(folder, ranks)
    per_rank = rounds(plan.ranks)
    every = [part for one in per_rank[0] for part in one.ranges]
    for before, after in pairwise(every):
        assert (before.file, before.stop) <= (after.file, after.start)
    taken = {
        (op.file, byte) for rank in plan.ranks for op in rank.reads if op.via == "node_once" for byte in bytes_taken(op.source)
    }
    assert bytes_of(tuple(every)) == taken
    for turn in zip(*per_rank, strict=True):
        assert len({one.ranges for one in turn}) == 1
        read = [part for one in turn for part in one.share]
        assert sum(part.stop - part.start for part in read) == turn[0].nbytes
        assert bytes_of(tuple(read)) == bytes_of(turn[0].ranges)
        sizes = [sum(part.stop - part.start for part in one.share) for one in turn]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_parts_of_an_operation_lie_in_one_range_and_are_all_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setattr(exchange, "ROUND_BYTES", 700)
    plan = planned(folder, ranks)
    windows = [part for one in rounds(plan.ranks)[0] for part in one.ranges]
    for rank in plan.ranks:
        for op in rank.reads:
            if op.via == "node_once":
                parts = list(cut(op))
                assert sorted(byte for source, _ in parts for byte in bytes_taken(source)) == sorted(bytes_taken(op.source))
                assert sorted(byte for _, dest in parts for byte in bytes_taken(dest)) == sorted(bytes_taken(op.dest))
                for source, _ in parts:
                    assert any(w.file == op.file and w.start <= source.offset and source.end <= w.stop for w in windows)


def test_what_one_rank_takes_alone_and_in_one_range_is_not_shared(folder: Path) -> None:
    plan = planned(folder, 2)
    by_way: dict[str, set[str]] = {}
    for rank in plan.ranks:
        for op in rank.reads:
            by_way.setdefault(op.via, set()).add(op.parameter.removeprefix("model.layers.0."))
    assert {"self_attn.o_proj.weight", "mlp.down_proj.weight", "model.norm.weight"} <= by_way["node_once"]
    assert {"self_attn.q_proj.weight", "mlp.gate_proj.weight", "model.embed_tokens.weight"} <= by_way["direct"]
    assert by_way.keys() == {"node_once", "direct"}


def test_one_rank_shares_nothing(folder: Path) -> None:
    assert not any(op.via == "node_once" for op in planned(folder, 1).ranks[0].reads)


def test_shared_memory_is_part_of_the_scratch(folder: Path) -> None:
    plan = planned(folder, 2)
    half = shared_bytes(rounds(plan.ranks)[0])
    assert 0 < half <= 2 * exchange.ROUND_BYTES
    assert [rank.scratch for rank in plan.ranks] == [half, half]
    cast = planned(folder, 2, dtype="bfloat16")
    assert [rank.scratch for rank in cast.ranks] == [half + SCRATCH, half + SCRATCH]


def op(source: Region, dest: Region, transform: TransformRef | None = None) -> ReadOp:
    return ReadOp(tensor="t", parameter="p", file=0, source=source, dest=dest, via="node_once", transform=transform)


def test_a_transform_gets_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ROUND_BYTES", 64)
    plain = op(Region(1000, 100), Region(0, 100))
    assert list(cut(plain)) == [(Region(1000, 64), Region(0, 64)), (Region(1064, 36), Region(64, 36))]
    whole = op(Region(1000, 100), Region(0, 200), CAST)
    assert list(cut(whole)) == [(Region(1000, 100), Region(0, 200))]


def test_blocks_are_cut_along_the_outer_loop_then_the_inner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ROUND_BYTES", 64)
    parts = list(cut(op(Region(0, 8, ((2, 100), (4, 25))), Region(0, 8, ((2, 32), (4, 8))))))
    assert [source for source, _ in parts] == [
        Region(0, 8, ((2, 25),)),
        Region(50, 8, ((2, 25),)),
        Region(100, 8, ((2, 25),)),
        Region(150, 8, ((2, 25),)),
    ]
    assert [dest.offset for _, dest in parts] == [0, 16, 32, 48]


def test_a_round_counts_its_bytes() -> None:
    assert Round((FileRange(0, 5, 8), FileRange(1, 0, 10))).nbytes == 13
