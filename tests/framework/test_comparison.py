"""Variants side by side: bytes and bits from headers, perplexity against transformers' own loss."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import loadmaster as lm
from loadmaster.cli.program import run
from loadmaster.perplexity import perplexity
from nibble_files import quantise_folder
from runnable_model import write_runnable_model

TEXT = "the quick brown fox jumps over the lazy dog, and then it does the same thing all over again\n" * 3


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_runnable_model(tmp_path / "model")


def test_perplexity_is_that_of_transformers_loss(model: Path) -> None:
    reference = lm.load_model(model, dtype="float32")
    with lm.Engine(model, dtype="float32") as engine:
        ids = engine.tokenizer.encode(TEXT)
        score = perplexity(engine, TEXT, window=16)
    losses, tokens = 0.0, 0
    for start in range(0, len(ids), 16):
        part = torch.tensor([ids[start : start + 16]])
        if part.shape[1] > 1:
            losses += float(reference(part, labels=part).loss) * (part.shape[1] - 1)
            tokens += part.shape[1] - 1
    assert score.tokens == tokens
    assert math.isclose(score.value, math.exp(losses / tokens), rel_tol=1e-5)


def test_a_text_without_anything_to_predict_is_refused(model: Path) -> None:
    with lm.Engine(model) as engine, pytest.raises(lm.UsageError, match="LM-USAGE-TEXT"):
        perplexity(engine, "")


def test_variants_are_compared_in_one_table(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    narrow = tmp_path / "narrow"
    narrow.mkdir()
    for file in model.iterdir():
        (narrow / file.name).write_bytes(file.read_bytes())
    state = load_file(model / "model.safetensors")
    save_file({name: tensor.bfloat16() for name, tensor in state.items()}, narrow / "model.safetensors", {"format": "pt"})
    (tmp_path / "text").write_text(TEXT)
    arguments = ["inspect", str(model), str(narrow), "--compare", "--text", str(tmp_path / "text")]
    assert run(arguments) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == ["model", "bytes", "of", "largest", "bits", "per", "weight", "quantised", "perplexity"]
    assert rows[1].split()[3:6] == ["100.0", "%", "32.00"]
    assert rows[2].split()[3:6] == ["50.0", "%", "16.00"]
    assert run([*arguments, "--json"]) == 0
    wide, small = json.loads(capsys.readouterr().out)["comparison"]
    assert (wide["bits_per_weight"], small["bits_per_weight"]) == (32, 16)
    assert abs(wide["perplexity"] / small["perplexity"] - 1) < 0.05


def test_weights_are_counted_and_not_their_words(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.host import PluginHost
    from loadmaster.inspection import inspect

    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "contrib" / "loadmaster-nibble" / "src"))
    plain = lm.inspect(model)
    shapes = load_file(model / "model.safetensors")
    chosen = [name for name, tensor in shapes.items() if "_proj" in name and tensor.shape[1] % 32 == 0]
    quantise_folder(model, lambda name: name in chosen)
    found = inspect(PluginHost(extra=["loadmaster_nibble"]), str(model))
    assert found.parameters == plain.parameters
    assert found.quantised == {"nibble, 4 bits, groups of 32": len(chosen)}
    assert found.bits_per_weight < plain.bits_per_weight
