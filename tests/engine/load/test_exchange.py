"""Ranks that read for one another: every byte leaves storage once, and all parameters are those of a plain load."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import loadmaster as lm
from engine.executors.process_watch import open_files
from loadmaster.checkpoints import open_index
from loadmaster.host import PluginHost
from loadmaster_engine.load.arena import Arena, DeviceArena, HostArena
from loadmaster_engine.load.shared_memory import SharedMemory
from loadmaster_engine.load.stages import RankLoad
from loadmaster_engine.plan import exchange, make_plan
from loadmaster_engine.plan.exchange import rounds
from loadmaster_hookspecs.plan import LoadPlan, PlanSettings
from loadmaster_plugins.local_source.reader import LocalReader
from tiny_models import make_model, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(make_model("qwen2", num_key_value_heads=2), tmp_path_factory.mktemp("qwen2"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Offset and length of all reads of files that cannot be mapped."""
    seen: list[tuple[int, int]] = []
    plain = LocalReader.read_into

    def read_into(self: LocalReader, offset: int, view: memoryview) -> int:
        seen.append((offset, len(view)))
        return plain(self, offset, view)

    monkeypatch.setattr(LocalReader, "read_into", read_into)
    monkeypatch.setattr(LocalReader, "mapping", lambda self: None)
    return seen


def planned(host: PluginHost, folder: Path, **settings: object) -> LoadPlan:
    return make_plan(host, open_index(host, folder), PlanSettings(**settings))  # type: ignore[arg-type]


def load_all(host: PluginHost, plan: LoadPlan, make: Callable[[int], Arena]) -> list[RankLoad]:
    """Take all ranks through the load in this thread, as the host does."""
    loads = [RankLoad(host, plan, rank.rank, "cpu", lambda event: None) for rank in plan.ranks]
    turns = rounds(plan.ranks)
    address = ""
    for load, own in zip(loads, turns, strict=True):
        load.reserve(make(plan.ranks[load.report().rank].bytes))
        address = load.share(own, address)
    for number in range(len(turns[0]) + 1 if turns[0] else 0):
        for load in loads:
            load.exchange(number)
    for load in loads:
        load.load()
    return loads


def parameters(plan: LoadPlan, loads: Sequence[RankLoad]) -> list[bytes]:
    tensors = (load.arena.view(binding) for load, rank in zip(loads, plan.ranks, strict=True) for binding in rank.bindings)
    return [tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
@pytest.mark.parametrize("make", [HostArena, lambda size: DeviceArena(size, "cpu")])
def test_parameters_are_those_of_a_plain_load_and_bytes_are_read_once(
    folder: Path,
    reads: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    dtype: str,
    make: Callable[[int], Arena],
) -> None:
    monkeypatch.setattr(exchange, "ROUND_BYTES", 20_000)
    host = PluginHost()
    plan = planned(host, folder, tensor_parallel=ranks, dtype=dtype)  # files that cannot be mapped need no request
    assert any(op.via == "node_once" for op in plan.ranks[0].reads)
    reads.clear()
    loads = load_all(host, plan, make)
    times = np.zeros(plan.files[0].size, dtype=np.int64)
    start = plan.files[0].header_bytes
    for offset, length in reads:
        if offset >= start:
            times[offset : offset + length] += 1
    assert (times[start:] == 1).all()
    reports = [load.report() for load in loads]
    assert sum(report.bytes_by_call for report in reports) == plan.ledger.bytes_unique == times.sum()
    assert [report.bytes_read for report in reports] == [rank.bytes_planned for rank in plan.ranks]
    monkeypatch.undo()
    plain = planned(host, folder, tensor_parallel=ranks, dtype=dtype, read_mode="direct")
    assert not any(op.via == "node_once" for op in plain.ranks[0].reads)
    assert parameters(plan, loads) == parameters(plain, load_all(host, plain, HostArena))


def test_a_mode_on_request_maps_nothing_and_reads_once(folder: Path) -> None:
    logits = {}
    for mode in ("node_once", "direct"):
        with lm.Engine(folder, tensor_parallel=3, executor="inline", read_mode=mode) as engine:
            logits[mode] = engine.logits([3, 9, 4]).tobytes()
            report = engine.report
        if mode == "node_once":
            assert sum(rank.bytes_by_call for rank in report.ranks) == report.bytes_unique
            assert sum(rank.bytes_mapped + rank.bytes_viewed for rank in report.ranks) == 0
        assert report.amplification == 1.0
    assert logits["node_once"] == logits["direct"]


def test_memory_is_shared_by_its_address_and_goes_with_its_owners() -> None:
    before = sorted(open_files(os.getpid()).values())
    made = SharedMemory(8192)
    other = SharedMemory(8192, made.address)
    made.bytes[5000] = 7
    assert other.bytes[5000] == 7
    made.close()
    assert other.bytes[5000] == 7
    for memory in (made, other):
        memory.close()
    assert sorted(open_files(os.getpid()).values()) == before


def test_memory_that_is_not_there_is_an_error_with_a_remedy() -> None:
    with pytest.raises(lm.ResourceError, match="LM-MEMORY-SHARED") as caught:
        SharedMemory(4096, f"/proc/{os.getpid()}/fd/9999")
    assert "overread" in str(caught.value)


def test_a_read_that_fails_for_all_names_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LocalReader.read_into

    def fail(self: LocalReader, offset: int, view: memoryview) -> int:
        if offset:  # the header, at the file's beginning, can be read
            raise OSError(5, "Input/output error")
        return plain(self, offset, view)

    host = PluginHost()
    plan = planned(host, folder, tensor_parallel=2, read_mode="node_once")
    loads = [RankLoad(host, plan, rank, "cpu", lambda event: None) for rank in (0, 1)]
    turns = rounds(plan.ranks)
    for load in loads:
        load.reserve()
    address = loads[0].share(turns[0], "")
    loads[1].share(turns[1], address)
    monkeypatch.setattr(LocalReader, "read_into", fail)
    with pytest.raises(lm.ResourceError, match="LM-STORAGE-READ") as caught:
        loads[1].exchange(0)
    assert caught.value.report.where["file"] == "model.safetensors"
    for load in loads:
        load.close()
