"""`loadmaster.plugin` has what plugin authors need, all of it, and nothing heavy."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import save_file

import loadmaster.plugin
from loadmaster import checkpoints
from loadmaster.plugin import IntegrityError, open_checkpoint
from loadmaster_hookspecs import (
    dtypes,
    errors,
    events,
    executors,
    findings,
    formats,
    layout,
    models,
    sharding,
    sources,
    transforms,
)

CONTRACT = (dtypes, errors, events, executors, findings, formats, layout, models, sharding, sources, transforms)
INNER = {"from_report", "printable", "render"}
"""Functions that turn errors into data and text; they are the kernel's business."""


def public(module: ModuleType) -> set[str]:
    """Return the names that a module defines: its classes and functions, and its capitalised values."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (
            getattr(value, "__module__", None) == module.__name__
            if inspect.isclass(value) or inspect.isfunction(value)
            else not inspect.ismodule(value) and name[0].isupper()
        )
    }


def test_it_has_the_whole_contract() -> None:
    for module in CONTRACT:
        names = public(module) - INNER
        foreign = {"ClassVar", "Final", "Any", "Literal", "Protocol", "TYPE_CHECKING"}
        for name in names - foreign:
            assert name in loadmaster.plugin.__all__, f"{module.__name__}.{name}"
            assert getattr(loadmaster.plugin, name) is getattr(module, name)


def test_every_name_it_promises_exists() -> None:
    for name in loadmaster.plugin.__all__:
        assert hasattr(loadmaster.plugin, name)


def test_importing_it_brings_in_nothing_heavy() -> None:
    code = "import sys, loadmaster.plugin; print([n for n in ('torch', 'numpy', 'transformers', 'click') if n in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"


def test_a_checkpoint_gives_stored_bytes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", 100)
    arrays = {"a": np.arange(70, dtype=np.float32), "b": np.zeros((0, 3), np.float32), "c": np.arange(25, dtype=np.float32)}
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with open_checkpoint(tmp_path) as checkpoint:
        sizes = {name: [len(piece) for piece in checkpoint.pieces(name)] for name in arrays}
        assert sizes == {"a": [100, 100, 80], "b": [], "c": [100]}
        for name, array in arrays.items():
            assert b"".join(bytes(piece) for piece in checkpoint.pieces(name)) == array.tobytes()
        assert checkpoint.file("config.json") == b"{}"
        assert checkpoint.file("tokenizer.json") is None
        with pytest.raises(KeyError):
            list(checkpoint.pieces("d"))


def test_a_checkpoint_that_changed_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.arange(70, dtype=np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with open_checkpoint(tmp_path) as checkpoint:
        save_file({"a": np.arange(71, dtype=np.float32)}, tmp_path / "model.safetensors")
        with pytest.raises(IntegrityError, match="LM-FILE-CHANGED"):
            list(checkpoint.pieces("a"))
