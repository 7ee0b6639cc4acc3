"""The tutorial's quantizer is short, shown as it is, and runs models: over two ranks, with experts, from every format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.torch import save_file

import loadmaster as lm
from nibble_files import quantise_folder
from tiny_models import make_model, reference_logits, relative_error, save_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-a-quantizer.md").read_text(encoding="utf-8")
PROJECT = ROOT / "contrib" / "loadmaster-nibble"
MODULE = "src/loadmaster_nibble/__init__.py"
SHOWN = dict(re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
IDS = [3, 17, 200, 5]
SIZES: dict[str, Any] = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 224}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96}


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name in ("loadmaster-nibble", "loadmaster-npy"):
        monkeypatch.syspath_prepend(str(ROOT / "contrib" / name / "src"))
    return ["loadmaster_nibble", "loadmaster_npy"]


def write(family: str, sizes: dict[str, Any], folder: Path) -> npt.NDArray[np.float32]:
    """Write a quantised model; return the logits of the plain model that it stands for."""
    model = make_model(family, **SIZES, **sizes)
    save_model(model, folder)
    plain = quantise_folder(folder, lambda name: "_proj.weight" in name)
    save_model(model, folder / "plain")
    save_file(plain, folder / "plain" / "model.safetensors", {"format": "pt"})
    return reference_logits(lm.load_model(folder / "plain", dtype="float32"), IDS)


def test_the_modules_are_shown_as_they_are() -> None:
    assert SHOWN[MODULE] == (PROJECT / MODULE).read_text(encoding="utf-8")
    assert (PROJECT / "pyproject.toml").read_text(encoding="utf-8").startswith(SHOWN["pyproject.toml"])


def test_the_quantizer_is_short() -> None:
    assert sum(bool(line.strip()) for line in SHOWN[MODULE].splitlines()) < 100


@pytest.mark.parametrize(("family", "sizes"), [("llama", {}), ("qwen3_moe", EXPERTS)])
def test_the_tutorials_call_gives_the_plain_models_logits(
    family: str, sizes: dict[str, Any], plugins: list[str], tmp_path: Path
) -> None:
    reference = write(family, sizes, tmp_path)
    (example,) = re.findall(r"```python\n(import loadmaster as lm.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    call = names["logits_over_two_ranks"]
    assert callable(call)
    assert relative_error(call(tmp_path), reference) < 1e-5


@pytest.mark.parametrize(("family", "sizes"), [("llama", {}), ("qwen3_moe", EXPERTS)])
def test_another_file_format_needs_nothing(family: str, sizes: dict[str, Any], plugins: list[str], tmp_path: Path) -> None:
    from loadmaster_npy.export import npy_export  # type: ignore[import-not-found]

    reference = write(family, sizes, tmp_path / "model")
    result = click.testing.CliRunner().invoke(npy_export, [str(tmp_path / "model"), str(tmp_path / "npy")])
    assert result.exit_code == 0, result.output
    with lm.Engine(tmp_path / "npy", tensor_parallel=2, executor="inline", plugins=plugins) as engine:
        assert engine.plan.data.format == "npy"
        assert relative_error(engine.logits(IDS), reference) < 1e-5
