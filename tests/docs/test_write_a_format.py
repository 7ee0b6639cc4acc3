"""The tutorial shows the distribution that the tests build, file by file, and its test example passes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from loadmaster.host import PluginHost
from loadmaster.plugin import Checkpoint

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-a-format.md").read_text(encoding="utf-8")
PROJECT = ROOT / "contrib" / "loadmaster-npy"
SHOWN = dict(re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


def test_every_module_is_shown_as_it_is() -> None:
    modules = {path.relative_to(PROJECT).as_posix(): path.read_text(encoding="utf-8") for path in PROJECT.glob("src/*/*.py")}
    assert {name: text for name, text in SHOWN.items() if name != "pyproject.toml"} == modules


def test_the_project_file_is_shown_without_the_settings_of_tools() -> None:
    shown, whole = SHOWN["pyproject.toml"], (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    assert whole.startswith(shown)
    assert set(tomllib.loads(whole)) == set(tomllib.loads(shown))
    assert set(tomllib.loads(whole[len(shown) :])["tool"]) == {"pytest", "mypy", "ruff"}


def test_the_format_is_short() -> None:
    lines = [line for name in ("header", "format") for line in SHOWN[f"src/loadmaster_npy/{name}.py"].splitlines()]
    assert sum(bool(line.strip()) for line in lines) < 150


def test_its_test_example_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(import numpy.*?)```", PAGE, re.DOTALL)
    monkeypatch.syspath_prepend(str(PROJECT / "src"))
    names: dict[str, object] = {}
    exec(example, names)
    names["open_checkpoint"] = lambda path: Checkpoint(PluginHost(extra=["loadmaster_npy"]), path)
    test = names["test_round_trip"]
    assert callable(test)
    test(tmp_path)
