"""Models over real worker processes: equal logits, the same tokens, own bytes only, and hosts that stay small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import loadmaster as lm
from tiny_models import IDS, make_model, reference_logits, relative_error, save_model


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return make_model("llama", num_attention_heads=9, num_key_value_heads=3, head_dim=8, hidden_size=72)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.usefixtures("mark")
def test_logits_and_tokens_equal_those_of_one_rank(model: torch.nn.Module, folder: Path, ranks: int) -> None:
    with lm.Engine(folder) as alone, lm.Engine(folder, tensor_parallel=ranks, executor="multiprocess") as engine:
        assert relative_error(engine.logits(IDS), reference_logits(model, IDS)) < 1e-5
        prompts = [IDS, IDS[:2]]
        for options in ({"temperature": 0.0}, {"temperature": 0.8, "seed": 3}):
            assert engine.generate(prompts, max_tokens=6, **options) == alone.generate(prompts, max_tokens=6, **options)  # type: ignore[arg-type]


def drop_from_cache(path: Path) -> None:
    """Write a file's pages out and drop them from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.usefixtures("mark")
def test_every_byte_leaves_storage_once(tmp_path: Path, ranks: int) -> None:
    shape = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    save_model(make_model("llama", **shape, intermediate_size=1536, vocab_size=3000), tmp_path)
    file = tmp_path / "model.safetensors"
    size = file.stat().st_size
    drop_from_cache(file)
    with lm.Engine(tmp_path, tensor_parallel=ranks, executor="multiprocess") as engine:
        report = engine.report
        charged = [rank.bytes_charged for rank in engine.plan.ranks]
    assert sum(charged) == report.bytes_unique == engine.plan.ledger.bytes_total
    assert report.amplification <= 1.01
    for rank in report.ranks:
        assert rank.bytes_read == rank.bytes_planned == rank.bytes_by_call + rank.bytes_mapped + rank.bytes_viewed
        # Beyond what was planned, read calls fetch the header that proves that the file is still the same one.
        assert rank.bytes_by_call <= rank.counters["proc_called"] <= rank.bytes_by_call + 100_000
    stored = sum(rank.counters["proc_stored"] + rank.counters["proc_warmed"] for rank in report.ranks)
    assert stored <= 1.01 * size
    if not tmp_path.is_relative_to("/dev/shm"):
        assert stored >= 0.97 * size, "the page cache was not empty: the test shows nothing"


@pytest.mark.usefixtures("mark")
def test_two_engines_at_once_do_not_meet(folder: Path) -> None:
    options = {"tensor_parallel": 2, "executor": "multiprocess"}
    with lm.Engine(folder, **options) as first, lm.Engine(folder, **options) as second:  # type: ignore[arg-type]
        assert first.logits(IDS).tobytes() == second.logits(IDS).tobytes()


@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize("method", ["tcp", "file", "env"])
def test_other_ways_to_meet(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    address = {"tcp": f"tcp://127.0.0.1:{port}", "file": f"file://{tmp_path}/store", "env": "env://"}[method]
    with lm.Engine(folder, tensor_parallel=2, executor="multiprocess", distributed_init_method=address) as engine:
        assert engine.logits([1, 2]).shape == (2, 250)
        assert (tmp_path / "store").exists() == (method == "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("mark")
def test_an_incomplete_environment_is_refused_before_any_process_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("MASTER_PORT", "abc")
    with pytest.raises(lm.UsageError) as caught:
        lm.Engine(folder, tensor_parallel=2, executor="multiprocess", distributed_init_method="env://")
    assert "RANK is not set" in str(caught.value)
    assert "'abc'" in str(caught.value)


HOST = """
import json, sys
import loadmaster as lm
with lm.Engine(sys.argv[1], tensor_parallel=2, executor="multiprocess") as engine:
    engine.generate([[1, 2, 3]], max_tokens=2)
    engine.logits([1, 2, 3])
    resident = int(open("/proc/self/statm").read().split()[1]) * 4096
print(json.dumps({"resident": resident, "torch": "torch" in sys.modules}))
"""


def test_the_host_stays_small_and_without_torch(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", HOST, str(folder)], capture_output=True, text=True, timeout=90, check=True)
    answer = json.loads(done.stdout)
    assert answer["torch"] is False
    assert answer["resident"] < 120e6
