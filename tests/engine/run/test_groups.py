"""Collectives between threads, and what placements put around modules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from loadmaster_engine.run.collectives import attach
from loadmaster_engine.run.groups import Group, Meeting, Threads
from loadmaster_hookspecs import WorkerError
from loadmaster_hookspecs.sharding import Interval, ModulePlacement, Placement


def on_ranks(world: int, work: Callable[[Group], torch.Tensor]) -> list[torch.Tensor]:
    meeting = Meeting(world)
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(lambda rank: work(Threads(rank, meeting)), range(world)))


def test_sums_are_the_same_bits_everywhere_and_inputs_stay() -> None:
    values = [torch.randn(7, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    copies = [value.clone() for value in values]
    sums = on_ranks(3, lambda group: group.sum(values[group.rank]))
    assert all(torch.equal(total, sums[0]) for total in sums)
    torch.testing.assert_close(sums[0], copies[0] + copies[1] + copies[2])
    assert all(torch.equal(value, copy) for value, copy in zip(values, copies, strict=True))


def test_parts_of_different_size_are_joined_in_rank_order() -> None:
    parts = [2, 0, 3]
    joined = on_ranks(3, lambda group: group.concat(torch.full((1, parts[group.rank]), float(group.rank)), parts))
    assert all(tensor.tolist() == [[0, 0, 2, 2, 2]] for tensor in joined)


def test_a_rank_that_leaves_wakes_the_others() -> None:
    meeting = Meeting(2)
    threading.Timer(0.1, Threads(1, meeting).close).start()
    with pytest.raises(WorkerError) as caught:
        Threads(0, meeting).sum(torch.ones(1))
    assert caught.value.code == "LM-GROUP-BROKEN"


def rank_model(module: torch.nn.Module, placement: Placement, parts: tuple[int, ...], group: Group) -> torch.nn.Module:
    root = torch.nn.Module()
    root.add_module("m", module)
    attach(root, [ModulePlacement(path="m", placement=placement, parts=parts)], group)
    return module


def test_an_embedding_cut_by_rows_equals_the_whole_one() -> None:
    whole = torch.nn.Embedding(10, 3, padding_idx=9)
    ids = torch.tensor([[0, 3, 9], [4, 4, 8]])
    cuts = [Interval(0, 4), Interval(4, 8), Interval(8, 10)]

    def lookup(group: Group) -> torch.Tensor:
        part = torch.nn.Embedding(10, 3, padding_idx=9)
        own = cuts[group.rank]
        padded = torch.nn.functional.pad(whole.weight.data[own.start : own.stop], (0, 0, 0, 4 - own.size))
        part.weight = torch.nn.Parameter(padded)
        placement = Placement(owns={"vocab": (own,)}, collective_in="shift_ids", collective_out="sum")
        with torch.no_grad():
            result: torch.Tensor = rank_model(part, placement, (4, 4, 4), group)(ids)
        return result

    with torch.no_grad():
        expected = whole(ids)
    for output in on_ranks(3, lookup):
        torch.testing.assert_close(output, expected, rtol=0, atol=0)


@pytest.mark.parametrize("style", ["rowwise_split_input", "colwise_gather_output"])
def test_gathering_and_splitting_styles_equal_the_whole_module(style: str) -> None:
    whole = torch.nn.Linear(6, 5)
    value = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    rows = style == "rowwise_split_input"
    cuts = [Interval(0, 4), Interval(4, 6)] if rows else [Interval(0, 3), Interval(3, 5)]

    def forward(group: Group) -> torch.Tensor:
        own = cuts[group.rank]
        part = torch.nn.Linear(6, 5)
        if rows:
            part.weight = torch.nn.Parameter(whole.weight.data[:, own.start : own.stop])
            part.bias = torch.nn.Parameter(whole.bias.data if group.rank == 0 else torch.zeros(5))
            placement = Placement(owns={"in": (own,)}, collective_in="slice", collective_out="sum")
            parts: tuple[int, ...] = (4, 2)
        else:
            part.weight = torch.nn.Parameter(
                torch.nn.functional.pad(whole.weight.data[own.start : own.stop], (0, 0, 0, 3 - own.size))
            )
            part.bias = torch.nn.Parameter(torch.nn.functional.pad(whole.bias.data[own.start : own.stop], (0, 3 - own.size)))
            placement = Placement(owns={"out": (own,)}, collective_out="concat", total=5)
            parts = (3, 3)
        with torch.no_grad():
            result: torch.Tensor = rank_model(part, placement, parts, group)(value)
        return result

    with torch.no_grad():
        expected = whole(value)
    for output in on_ranks(2, forward):
        torch.testing.assert_close(output, expected)
