"""Worker processes that read for one another, from files that cannot be mapped."""

from __future__ import annotations

from pathlib import Path

import pytest

import loadmaster as lm
from engine.executors.process_watch import marked
from tiny_models import relative_error

PLUGIN = ["integration.awkward_format"]
IDS = [3, 17, 200, 5]


def test_processes_share_what_one_of_them_reads(mark: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lm.Engine(folder, tensor_parallel=3, executor="inline", read_mode="direct") as engine:
        wanted = engine.logits(IDS)
    monkeypatch.setenv("AWKWARD", "0.05")
    with lm.Engine(folder, tensor_parallel=3, executor="multiprocess", plugins=PLUGIN) as engine:
        assert {op.via for rank in engine.plan.ranks for op in rank.reads} == {"direct", "node_once"}
        assert relative_error(engine.logits(IDS), wanted) < 1e-6  # threads and processes may round differently
        report = engine.report
        for pid in marked(mark):
            left = Path(f"/proc/{pid}/maps").read_text()
            assert "loadmaster-exchange" not in left
    assert sum(rank.bytes_by_call for rank in report.ranks) == report.bytes_unique
    assert min(rank.bytes_by_call for rank in report.ranks) > 0
    assert report.amplification == 1.0
