"""The pure parts of the comparison with real producers: cases, differences, verdicts, the page, the folders."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from bench.checkpoint import write_tokenizer
from bench.environments import ROOT
from bench.marks import BEGIN, END
from conformance.base_model import random_tokens, write_base_model
from conformance.cases import CASES, SCRIPTS
from conformance.compare import compare_weights, relative_error
from conformance.demo_model import RECIPES, calibration
from conformance.environments import ENVIRONMENTS
from conformance.folders import cache_folder, keyed, made
from conformance.page import render, write_page
from conformance.records import Finding, Outcome, Report, Weights

EQUAL = Weights(matrices=14, different=0, worst=0.0)


def _outcome(*, logits: float = 1e-6, ranks: float = 1e-7, weights: Weights = EQUAL) -> Outcome:
    return Outcome(weights=weights, logits=logits, ranks={2: ranks, 3: 1e-7})


def test_every_case_has_a_name_an_environment_and_a_script() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.producer for case in CASES} == set(ENVIRONMENTS) == set(SCRIPTS)
    scripts = ROOT / "conformance" / "producers"
    assert [name for name in SCRIPTS.values() if not (scripts / f"{name}.py").is_file()] == []


def test_differences_are_measured_beside_the_largest_value() -> None:
    expected = np.array([[1.0, -4.0]], np.float32)
    assert relative_error(np.array([[1.0, -3.0]], np.float32), expected) == 0.25
    assert math.isinf(relative_error(np.array([[1.0, np.nan]], np.float32), expected))
    assert math.isinf(relative_error(np.ones((1, 3), np.float32), expected))


def test_weights_differ_when_one_element_does() -> None:
    expected = {"a": torch.ones(4, 4, dtype=torch.float16), "b": torch.ones(2, 4, dtype=torch.float16)}
    found = {name: weight.float() for name, weight in expected.items()}
    assert compare_weights(found, expected) == Weights(matrices=2, different=0, worst=0.0)
    found["b"] = found["b"].clone()
    found["b"][1, 3] += 2**-10
    assert compare_weights(found, expected) == Weights(matrices=2, different=1, worst=2**-10)
    with pytest.raises(ValueError, match="'c'"):
        compare_weights({**found, "c": found["a"]}, expected)


def test_agreement_needs_weights_logits_and_ranks() -> None:
    assert _outcome().agrees
    assert not _outcome(logits=3e-3).agrees
    assert not _outcome(ranks=2e-5).agrees
    different = Weights(matrices=14, different=1, worst=1e-4)
    assert not _outcome(weights=different).agrees
    assert not Finding(case="x", producer="x", outcome=_outcome(weights=different)).fine
    assert Finding(case="x", producer="x", outcome=_outcome(weights=different), known="its reason").fine
    assert not Finding(case="x", producer="x", outcome=_outcome(weights=different, ranks=2e-5), known="its reason").fine
    assert not Finding(case="x", producer="x", error="broken", known="its reason").fine


def test_the_page_shows_what_agrees_and_what_failed(tmp_path: Path) -> None:
    findings = (
        Finding(case="x-4b", producer="x", outcome=_outcome(), versions={"x": "1.0"}),
        Finding(case="x-8b", producer="x", outcome=_outcome(logits=0.5), versions={"x": "1.0"}),
        Finding(case="y-4b", producer="y", error="first line\nits reason"),
    )
    report = Report(date="2026-01-01", versions={"loadmaster": "0.1.0"}, findings=findings)
    page = tmp_path / "page.md"
    page.write_text(f"words\n{BEGIN}\nold\n{END}\n")
    write_page(report, page)
    text = page.read_text()
    assert text == f"words\n{BEGIN}\n\n{render(report)}\n{END}\n"
    assert "1 of 2 files agree, 0 differ as known (loadmaster 0.1.0)" in text
    assert "| x-4b | 14 | 0 | 1.0e-06 | 2: 1.0e-07, 3: 1.0e-07 | yes |" in text
    assert "| x-8b | 14 | 0 | 5.0e-01 | 2: 1.0e-07, 3: 1.0e-07 | **no** |" in text
    assert "- y-4b: its reason" in text


def test_folders_are_complete_or_absent(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "model", broken)
    assert list(tmp_path.iterdir()) == []
    assert made(tmp_path / "model", lambda folder: (folder / "whole").touch()) == tmp_path / "model"
    assert made(tmp_path / "model", broken) == tmp_path / "model"
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["whole"]


def test_names_follow_the_facts_and_the_cache_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert keyed("a", "1", "2") == keyed("a", "1", "2") != keyed("a", "1", "3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "loadmaster" / "conformance"


def test_base_models_are_finite_have_outliers_and_biases_where_the_family_has_them(tmp_path: Path) -> None:
    for family in ("llama", "qwen2"):
        (tmp_path / family).mkdir()
        write_base_model(tmp_path / family, family)
    plain, biased = (load_file(tmp_path / family / "model.safetensors") for family in ("llama", "qwen2"))
    assert sorted(biased.keys() - plain.keys()) == [
        f"model.layers.{layer}.self_attn.{name}_proj.bias" for layer in (0, 1) for name in ("k", "q", "v")
    ]
    down = plain["model.layers.1.mlp.down_proj.weight"].astype(np.float32)
    largest = np.sort(np.abs(down).mean(0))
    assert np.isfinite(down).all()
    assert largest[-1] > 5 * np.median(largest)
    assert {len(ids) for ids in random_tokens(3, 16, seed=0)} == {16}


def test_the_demo_is_measured_on_different_parts_of_these_pages(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    sequences = calibration(tmp_path, 5, 32)
    assert {len(ids) for ids in sequences} == {32}
    assert len({tuple(ids) for ids in sequences}) == 5
    assert {recipe.producer for recipe in RECIPES.values()} <= set(ENVIRONMENTS)
