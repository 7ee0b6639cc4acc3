"""The wheel works where the source tree is not: installed into an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from runnable_model import write_runnable_model


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of a new environment with the wheel; dependencies come from this interpreter's."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    python = folder / "bin" / "python"
    # Path files in a folder that is added by a path file are not followed, so an editable installation beside the
    # dependencies stays out of sight.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--no-deps", "--no-index", str(wheel)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder / "bin"


def _run(environment: Path, program: str, *arguments: str) -> str:
    command = [str(environment / program), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_module_comes_from_the_wheel(environment: Path) -> None:
    code = """
import importlib, pkgutil, sys
for name in ("loadmaster", "loadmaster_hookspecs", "loadmaster_engine", "loadmaster_plugins"):
    package = importlib.import_module(name)
    assert package.__file__.startswith(sys.prefix), package.__file__
    for module in pkgutil.walk_packages(package.__path__, f"{name}."):
        if not module.name.endswith("__main__"):
            assert importlib.import_module(module.name).__file__.startswith(sys.prefix), module.name
            print(module.name)
"""
    imported = _run(environment, "python", "-c", code).split()
    assert "loadmaster_engine.plan.planner" in imported
    assert "loadmaster.cli.run" in imported


def test_all_first_party_plugins_are_active(environment: Path) -> None:
    document: dict[str, Any] = json.loads(_run(environment, "loadmaster", "plugins", "list", "--json"))
    own = {plugin["name"]: plugin["status"] for plugin in document["plugins"] if plugin["distribution"] == "loadmaster"}
    assert len(own) >= 6
    assert set(own.values()) == {"active"}


def test_the_command_works(environment: Path, tmp_path: Path) -> None:
    model = write_runnable_model(tmp_path / "model")
    inspection = json.loads(_run(environment, "loadmaster", "inspect", str(model), "--json"))["inspection"]
    assert inspection["outline"]["query_heads"] == 9
    assert _run(environment, "loadmaster", "--version").strip() == "loadmaster, version 0.1.0"
