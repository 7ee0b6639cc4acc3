"""Mapped parameters: equal results at any split, views of the file and nothing else, and what is never mapped."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import loadmaster as lm
from loadmaster_plugins.local_source.reader import LocalReader
from tiny_models import IDS, make_model, reference_logits, relative_error, save_model

WIDE = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1536}


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return make_model("llama", **WIDE, vocab_size=2001)


@pytest.fixture(scope="module")
def folder(model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(model, tmp_path_factory.mktemp("mapped"))


def regions_of(path: Path) -> list[range]:
    """Return the addresses at which this process has mapped a file, after letting go of what earlier tests left."""
    gc.collect()
    rows = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    found = [row[0] for row in rows if len(row) == 6 and row[5] == str(path)]
    return [range(*(int(end, 16) for end in span.split("-"))) for span in found]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_logits_are_those_of_copied_weights(model: torch.nn.Module, folder: Path, ranks: int) -> None:
    reference = reference_logits(model, IDS)
    logits = {}
    for mode in ("auto", "mapped", "direct", "overread", "node_once"):
        with lm.Engine(folder, tensor_parallel=ranks, executor="inline", read_mode=mode) as engine:
            logits[mode] = engine.logits(IDS)
            assert relative_error(logits[mode], reference) < 1e-5
            assert engine.report.amplification == 1.0
            viewed = [rank.bytes_viewed for rank in engine.report.ranks]
            assert viewed == [rank.bytes_mapped for rank in engine.plan.ranks]
            assert all(viewed) == any(viewed) == (mode in ("auto", "mapped"))
    assert logits["auto"].tobytes() == logits["direct"].tobytes() == logits["overread"].tobytes()
    assert logits["node_once"].tobytes() == logits["direct"].tobytes()


def test_parameters_lie_inside_the_mapping_and_outlive_the_load(folder: Path) -> None:
    module = lm.load_model(folder)
    (region,) = regions_of(folder / "model.safetensors")
    for name, parameter in module.named_parameters():
        assert parameter.data_ptr() in region, name
    del module, parameter
    assert regions_of(folder / "model.safetensors") == []


def test_a_write_stays_in_this_process(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "m")
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    first, second = lm.load_model(tmp_path / "m"), lm.load_model(tmp_path / "m")
    with torch.no_grad():
        first.get_parameter("model.norm.weight").fill_(7)
    assert float(first.get_parameter("model.norm.weight").detach().min()) == 7
    assert float(second.get_parameter("model.norm.weight").detach().max()) != 7
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before


def test_tied_parameters_share_one_view(tmp_path: Path) -> None:
    model = make_model("llama", tie_word_embeddings=True)
    module = lm.load_model(save_model(model, tmp_path))
    assert module.get_parameter("lm_head.weight").data_ptr() == module.get_parameter("model.embed_tokens.weight").data_ptr()
    (region,) = regions_of(tmp_path / "model.safetensors")
    assert module.get_parameter("lm_head.weight").data_ptr() in region


@pytest.mark.parametrize("settings", [{"dtype": "bfloat16"}, {"device": "cuda"}, {"read_mode": "gathered"}])
def test_casts_devices_and_copying_modes_map_nothing(folder: Path, settings: dict[str, str]) -> None:
    plan = lm.plan(folder, tensor_parallel=2, **settings)  # type: ignore[arg-type]
    assert not any(binding.view for rank in plan.ranks for binding in rank.bindings)
    assert not any(op.via == "mapped" for rank in plan.ranks for op in rank.reads)


def test_rows_are_cut_by_copy_unless_mapping_is_asked_for(folder: Path) -> None:
    by_mode = {}
    for mode in ("auto", "mapped"):
        plan = lm.plan(folder, tensor_parallel=2, read_mode=mode)
        by_mode[mode] = {binding.parameter for binding in plan.ranks[0].bindings if binding.view}
    row_split = by_mode["mapped"] - by_mode["auto"]
    assert row_split == {f"model.layers.{i}.{name}.weight" for i in (0, 1) for name in ("self_attn.o_proj", "mlp.down_proj")}
    # The vocabulary of 2001 is padded on the last rank only, which alone has to copy.
    padded = lm.plan(folder, tensor_parallel=2, read_mode="mapped").ranks[1]
    assert {binding.parameter for binding in padded.bindings if not binding.view} == {
        "lm_head.weight",
        "model.embed_tokens.weight",
    }


@pytest.mark.parametrize(("kind", "ways"), [("none", {"direct", "node_once"}), ("read-only", {"direct", "gathered"})])
def test_files_that_cannot_hold_tensors_are_copied(
    model: torch.nn.Module, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ways: set[str]
) -> None:
    mapping = LocalReader.mapping
    monkeypatch.setattr(LocalReader, "mapping", lambda self: None if kind == "none" else mapping(self).toreadonly())
    for mode in ("auto", "mapped"):
        with lm.Engine(folder, tensor_parallel=2, executor="inline", read_mode=mode) as engine:
            assert {op.via for rank in engine.plan.ranks for op in rank.reads} == ways
            assert relative_error(engine.logits(IDS), reference_logits(model, IDS)) < 1e-5
            assert sum(rank.bytes_mapped for rank in engine.plan.ranks) == 0


def test_a_file_that_is_shorter_than_planned_is_refused(folder: Path, tmp_path: Path) -> None:
    from loadmaster.checkpoints import open_index
    from loadmaster.host import PluginHost
    from loadmaster_engine.load.stages import RankLoad
    from loadmaster_engine.plan import make_plan
    from loadmaster_hookspecs.plan import PlanSettings

    shutil.copytree(folder, tmp_path / "m")
    host = PluginHost()
    plan = make_plan(host, open_index(host, tmp_path / "m"), PlanSettings(read_mode="mapped"))
    file = tmp_path / "m" / "model.safetensors"
    os.truncate(file, file.stat().st_size - 100)
    load = RankLoad(host, plan, 0, "cpu", lambda event: None)
    load.reserve()
    with pytest.raises(lm.IntegrityError) as caught:
        load.load()
    assert caught.value.code == "LM-FILE-CHANGED"


MEMORY = """
import json, sys
import loadmaster as lm
from pathlib import Path
def anon():
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(row[1]) * 1024 for row in rows if row[0] == "RssAnon:")
lm.load_model(sys.argv[2])
grown, held = {}, []
for mode in ("mapped", "direct"):
    before = anon()
    held.append(lm.load_model(sys.argv[1], read_mode=mode))
    touched = sum(float(parameter.detach().view(-1)[::512].sum()) for parameter in held[-1].parameters())
    grown[mode] = anon() - before
print(json.dumps(grown))
"""


def test_mapped_weights_take_no_memory_of_the_process_own(folder: Path, tmp_path: Path) -> None:
    small = save_model(make_model("llama"), tmp_path)
    command = [sys.executable, "-c", MEMORY, str(folder), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    grown = json.loads(done.stdout)
    size = (folder / "model.safetensors").stat().st_size
    assert grown["direct"] > 0.9 * size
    assert grown["mapped"] < 0.15 * size
