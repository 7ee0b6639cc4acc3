"""A plugin in a distribution of its own: built, installed elsewhere, found, used in workers, and told apart from others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from bigram_family import write_bigram_model
from fake_distribution import FakeSite, toy_format
from runnable_model import write_runnable_model

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "contrib" / "loadmaster-npy"
SCRIPTS = Path(__file__).parent
TESTS = SCRIPTS.parent
METADATA = "loadmaster_npy-0.1.0.dist-info"

FRAGILE = """
    from loadmaster.plugin import Match, hookimpl
    from loadmaster_npy import NpyFolder

    class Fragile(NpyFolder):
        name = "fragile"

        def detect(self, source):
            return Match(score=1.0, evidence="breaks easily")

        def reader(self, source, file):
            reader = super().reader(source, file)
            reader.mapping = lambda: None
            reader.read_into = lambda *_: 1 / 0
            return reader

    @hookimpl
    def loadmaster_formats():
        return [Fragile()]
"""


class Ended:
    """A finished process."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = process.returncode, process.stdout, process.stderr

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output."""
        assert self.out, self.err
        document: dict[str, Any] = json.loads(self.out)
        return document


def python(*arguments: str | Path, sites: list[Path], **variables: str) -> Ended:
    """Run Python with `sites` in front of its path; no choice about plugins comes from the environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOADMASTER_", "PYTHON"))}
    environment = {**kept, "PYTHONPATH": os.pathsep.join(map(str, sites)), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    return Ended(
        subprocess.run(
            [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=100, check=False
        )
    )


def loadmaster(*arguments: str | Path, sites: list[Path]) -> Ended:
    return python("-m", "loadmaster.cli", *arguments, sites=sites)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the distribution's wheel is installed into."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    commands: list[list[str | Path]] = [
        ["-m", "hatchling", "build", "-t", "wheel", "-d", wheels],
        ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--find-links", wheels, "--target", target, "loadmaster-npy"],
    ]
    for command in commands:
        subprocess.run([sys.executable, *map(str, command)], cwd=PROJECT, capture_output=True, timeout=100, check=True)
    return target


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runnable_model(tmp_path_factory.mktemp("model") / "original")


@pytest.fixture(scope="module")
def exported(site: Path, original: Path) -> Path:
    """The model as the plugin's own command writes it."""
    target = original.parent / "npy"
    ended = loadmaster("npy-export", original, target, sites=[site])
    assert ended.code == 0, ended.err
    return target


@pytest.fixture
def beside(tmp_path: Path) -> FakeSite:
    """A folder for further distributions."""
    return FakeSite(tmp_path / "beside")


def plugin(ended: Ended, name: str) -> Mapping[str, Any]:
    rows: list[dict[str, Any]] = [row for row in ended.document["plugins"] if row["name"] == name]
    assert len(rows) == 1
    return rows[0]


def test_its_own_tests_pass_against_the_installed_wheel(site: Path) -> None:
    ended = python("-m", "pytest", "-q", "-p", "no:cacheprovider", PROJECT, sites=[site])
    assert ended.code == 0, ended.out


def test_it_is_listed_with_distribution_and_version(site: Path) -> None:
    row = plugin(loadmaster("plugins", "list", "--json", sites=[site]), "npy")
    assert (row["distribution"], row["version"], row["status"]) == ("loadmaster-npy", "0.1.0", "active")
    assert row["hooks"] == ["loadmaster_commands", "loadmaster_formats"]
    assert row["module"] == str(site / "loadmaster_npy" / "__init__.py")


def test_the_command_writes_every_tensor_as_numpy_reads_it(original: Path, exported: Path) -> None:
    stored = load_file(original / "model.safetensors")
    assert {path.stem for path in exported.glob("*.npy")} == set(stored)
    for name, array in stored.items():
        np.testing.assert_array_equal(np.load(exported / f"{name}.npy"), array)


@pytest.fixture(scope="module")
def compared(site: Path, original: Path, exported: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What loads of the original and of the exported model gave, with a broken distribution beside the plugin."""
    beside = FakeSite(tmp_path_factory.mktemp("broken"))
    beside.install("broken-plugin", "1.0", {"broken": "broken_module"}, {"broken_module": "import a_module_that_is_not_there"})
    script = SCRIPTS / "compare_formats.py"
    return python(script, original, exported, sites=[site, beside.folder], OMP_NUM_THREADS="1").document


def test_workers_read_through_it(compared: dict[str, Any]) -> None:
    ours, theirs = compared["loads"]["exported, 2 processes"], compared["loads"]["original, 2 threads"]
    assert (ours["format"], theirs["format"]) == ("npy", "hf-safetensors")
    assert compared["differences"]["exported, 2 processes"] <= 1e-5 * compared["spread"]
    assert compared["spread"] > 1
    assert len(ours["bytes"]) == 2
    assert ours["bytes"] == theirs["bytes"]
    assert all(planned == read > 0 for planned, read in ours["bytes"])
    assert ours["amplification"] == 1.0
    assert not ours["torch_in_host"]


def test_three_ranks_in_one_process_read_through_it(compared: dict[str, Any]) -> None:
    ours = compared["loads"]["exported, 3 threads"]
    assert (ours["format"], len(ours["bytes"])) == ("npy", 3)
    assert compared["differences"]["exported, 3 threads"] <= 1e-5 * compared["spread"]


def test_a_broken_distribution_beside_it_is_harmless_and_told(compared: dict[str, Any]) -> None:
    why = "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"
    for load in compared["loads"].values():
        assert f"plugin broken (broken-plugin 1.0), failed: {why}" in load["notices"]


@pytest.mark.parametrize("name", ["loadmaster-npy", "npy"])
def test_without_it_the_folder_is_unknown(site: Path, exported: Path, name: str) -> None:
    ended = loadmaster("plan", exported, "-p", f"no:{name}", "--json", sites=[site])
    assert (ended.code, ended.document["error"]["code"]) == (5, "LM-FORMAT-UNKNOWN")
    assert any("npy (loadmaster-npy 0.1.0), disabled" in hint for hint in ended.document["error"]["hints"])


def test_a_broken_distribution_is_listed_with_its_reason(site: Path, beside: FakeSite) -> None:
    beside.install("broken-plugin", "1.0", {"broken": "broken_module"}, {"broken_module": "raise ImportError('no such thing')"})
    listed = loadmaster("plugins", "list", "--json", sites=[site, beside.folder])
    row = plugin(listed, "broken")
    assert (row["distribution"], row["version"], row["status"]) == ("broken-plugin", "1.0", "failed")
    assert row["reason"] == "ImportError: no such thing"
    assert plugin(listed, "npy")["status"] == "active"


def test_two_distributions_with_one_plugin_name(site: Path, beside: FakeSite, exported: Path) -> None:
    beside.install("other-npy", "2.5", {"npy": "other_npy"}, {"other_npy": toy_format("other")})
    ended = loadmaster("inspect", exported, "--json", sites=[site, beside.folder])
    error = ended.document["error"]
    assert (ended.code, error["code"]) == (4, "LM-PLUGIN-CONFLICT")
    assert "loadmaster-npy 0.1.0" in error["why"]
    assert "other-npy 2.5" in error["why"]
    chosen = loadmaster("inspect", exported, "-p", "no:other-npy", "--json", sites=[site, beside.folder])
    assert chosen.document["inspection"]["format"] == "npy"


def test_two_formats_that_claim_a_folder_equally(site: Path, beside: FakeSite, exported: Path) -> None:
    beside.install("acme-arrays", "3.0", {"acme": "acme_arrays"}, {"acme_arrays": toy_format("arrays", score=0.8)})
    ended = loadmaster("inspect", exported, "--json", sites=[site, beside.folder])
    error = ended.document["error"]
    assert (ended.code, error["code"]) == (4, "LM-PLUGIN-TIE")
    assert "arrays by acme (acme-arrays 3.0): 0.80" in error["why"]
    assert "npy by npy (loadmaster-npy 0.1.0): 0.80" in error["why"]


def test_a_worker_that_finds_another_version_does_no_work(site: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(site, tmp_path / "site")
    outcome = python(SCRIPTS / "upgrade_meanwhile.py", copy / METADATA / "METADATA", sites=[copy]).document
    error = outcome["error"]
    assert (error["code"], error["exit_code"], error["where"]["rank"]) == ("LM-PLUGIN-MANIFEST", 4, 0)
    assert error["why"] == "npy: version 0.1.0 in the parent, 0.2.0 here"
    assert outcome["stages"] == []


def test_plugins_passed_as_objects(site: Path, tmp_path: Path) -> None:
    shutil.copytree(site / "loadmaster_npy", tmp_path / "packages" / "loadmaster_npy")
    expected = write_bigram_model(tmp_path / "model")[[1, 2, 3]].tolist()
    outcome = python(SCRIPTS / "pass_objects.py", tmp_path / "model", sites=[tmp_path / "packages", TESTS]).document
    assert outcome["refused"] == ["LM-PLUGIN-NOT-IMPORTABLE", 4, []]
    logits, started = outcome["processes"]
    assert logits == expected
    assert started, "the audit hook sees processes that are started"
    for ranks in (1, 2):
        logits, opened = outcome[f"inline {ranks}"]
        assert logits == expected
        assert opened >= ranks, "every rank reads through the very object that was passed"


def test_an_exception_in_a_worker_names_plugin_version_rank_and_call(site: Path, beside: FakeSite, tmp_path: Path) -> None:
    write_bigram_model(tmp_path / "model")
    plugins = {"fragile": "acme_fragile", "bigram": "bigram_family"}
    beside.install("acme-fragile", "3.1", plugins, {"acme_fragile": FRAGILE})
    choices = ["--executor", "multiprocess", "--tp", "2", "-p", "no:transformers", "--json"]
    ended = loadmaster("run", tmp_path / "model", *choices, "hello", sites=[site, beside.folder, TESTS])
    error = ended.document["error"]
    assert (ended.code, error["code"]) == (4, "LM-PLUGIN-FAILED")
    place = error["where"]
    assert place["call"] == "read_into for table.weight.npy of format fragile"
    assert error["summary"] == f"plugin fragile (acme-fragile 3.1) failed in {place['call']}"
    assert (place["plugin"], place["distribution"], place["version"]) == ("fragile", "acme-fragile", "3.1")
    assert place["rank"] in (0, 1)
    assert (place["stage"], place["hook"]) == ("load", "loadmaster_formats")
    assert place["tensor"] == "table.weight"
    assert error["why"] == "ZeroDivisionError: division by zero"
    assert "acme_fragile.py" in error["traceback"]
    assert "ZeroDivisionError" in error["traceback"]
