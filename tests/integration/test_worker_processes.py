"""Models over real worker processes: equal logits, the same tokens, own bytes only, and hosts that stay small."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

import loadmaster as lm
from peft_adapters import ALL, TOLERANCE, make_adapter
from tiny_models import IDS, make_model, reference_logits, relative_error, save_model

QUANTISED: Final = Path(__file__).parents[1] / "data" / "gptq-4b-g64-asym-act"
PLUGINS: Final = ["bigram_family"]
PROMPTS: Final = (IDS, IDS[:2])
SAMPLING: Final[tuple[dict[str, Any], ...]] = ({"temperature": 0.0}, {"temperature": 0.8, "seed": 3})


class Large(NamedTuple):
    """A llama of 42 MB with nine query and three key-value heads, its logits by transformers, and what one rank answers."""

    folder: Path
    logits: npt.NDArray[np.float32]
    answers: list[list[lm.Completion]]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Large:
    shape = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    model = make_model("llama", **shape, intermediate_size=1536, vocab_size=3000)
    folder = save_model(model, tmp_path_factory.mktemp("large"))
    with lm.Engine(folder) as alone:
        return Large(folder, reference_logits(model, IDS), answers(alone))


def answers(engine: lm.Engine) -> list[list[lm.Completion]]:
    """Return greedy and sampled answers."""
    return [engine.generate(PROMPTS, max_tokens=6, **options) for options in SAMPLING]


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
def test_every_byte_leaves_storage_once_and_answers_are_those_of_one_rank(large: Large, tmp_path: Path, ranks: int) -> None:
    file = shutil.copytree(large.folder, tmp_path / "cold") / "model.safetensors"
    size = file.stat().st_size
    drop_from_cache(file)
    with lm.Engine(file.parent, tensor_parallel=ranks, executor="multiprocess") as engine:
        report = engine.report
        charged = [rank.bytes_charged for rank in engine.plan.ranks]
        assert relative_error(engine.logits(IDS), large.logits) < 1e-5
        assert answers(engine) == large.answers
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
    """One of the models is quantised, by a real producer, whose logits are beside it."""
    expected = load_file(QUANTISED / "expected" / "logits.safetensors")
    ids: list[int] = expected["input_ids"][0].tolist()
    options: dict[str, Any] = {"executor": "multiprocess", "tensor_parallel": 2}
    with lm.Engine(folder) as alone:
        wanted = alone.logits(IDS)
    with lm.Engine(folder, **options) as first, lm.Engine(QUANTISED, dtype="float32", kernel="dequant", **options) as second:
        assert relative_error(second.logits(ids), expected["logits"][0]) < 1e-6
        assert relative_error(first.logits(IDS), wanted) < TOLERANCE
        assert relative_error(second.logits(ids), expected["logits"][0]) < 1e-6


@pytest.mark.usefixtures("mark")
@pytest.mark.parametrize(("method", "name"), [("tcp", "table"), ("file", "table"), ("env", "folder")])
def test_other_ways_to_meet(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, name: str
) -> None:
    """The last one also computes sums: it takes another way than ranks that are known to be on one machine."""
    import socket

    model: Path = request.getfixturevalue(name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for variable, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(variable, value)
    address = {"tcp": f"tcp://127.0.0.1:{port}", "file": f"file://{tmp_path}/store", "env": "env://"}[method]
    options: dict[str, Any] = {"executor": "multiprocess", "distributed_init_method": address}
    with lm.Engine(model, plugins=PLUGINS) as alone, lm.Engine(model, tensor_parallel=2, plugins=PLUGINS, **options) as engine:
        assert relative_error(engine.logits([1, 2]), alone.logits([1, 2])) < 1e-5
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
model, adapter, ids = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
options = {"executor": "multiprocess", "dtype": "float32", "adapters": {"it": adapter}}
with lm.Engine(model, tensor_parallel=2, **options) as engine:
    engine.generate([[1, 2, 3]], max_tokens=2)
    logits = engine.logits(ids, adapter="it").tolist()
    resident = int(open("/proc/self/statm").read().split()[1]) * 4096
heavy = [name for name in ("torch", "peft") if name in sys.modules]
print(json.dumps({"resident": resident, "heavy": heavy, "logits": logits}))
"""


def test_the_host_of_a_model_with_an_adapter_stays_small_without_torch_and_peft(tmp_path: Path) -> None:
    """The adapter's modules are named by a pattern, which is peft's to match, in the planner's process."""
    made = make_adapter(tmp_path, target_modules=f".*({'|'.join(ALL)})", use_dora=True)
    command = [sys.executable, "-c", HOST, str(made.model), str(made.adapter), json.dumps(IDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    answer = json.loads(done.stdout)
    assert answer["heavy"] == []
    assert answer["resident"] < 120e6
    assert relative_error(np.array(answer["logits"], np.float32), made.logits) < TOLERANCE
