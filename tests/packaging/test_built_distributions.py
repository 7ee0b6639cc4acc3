"""What is built holds what the tree holds: nothing forgotten, nothing extra."""

from __future__ import annotations

import configparser
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "framework/loadmaster",
    "hookspecs/loadmaster_hookspecs",
    "engine/loadmaster_engine",
    "plugins/loadmaster_plugins",
}


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (entry for entry in archive.namelist() if entry.endswith(f".dist-info/{name}"))
        return archive.read(member).decode()


def test_the_wheel_holds_the_four_packages_and_nothing_else(wheel: Path, tracked: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {name.partition("/")[2] for name in tracked if any(name.startswith(f"{package}/") for package in PACKAGES)}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {f"{package.partition('/')[2]}/py.typed" for package in PACKAGES} <= names


def test_the_wheel_holds_the_files_unchanged(wheel: Path) -> None:
    roots = {PurePosixPath(package).name: PurePosixPath(package).parent for package in PACKAGES}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if ".dist-info/" not in name:
                assert archive.read(name) == (ROOT / roots[name.partition("/")[0]] / name).read_bytes(), name


def test_the_wheel_registers_what_the_project_declares(wheel: Path) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(_metadata(wheel, "entry_points.txt"))
    project = _project()
    assert dict(parser["loadmaster"]) == project["entry-points"]["loadmaster"]
    assert dict(parser["console_scripts"]) == project["scripts"]


def test_the_wheel_has_metadata_and_licence(wheel: Path) -> None:
    metadata = message_from_string(_metadata(wheel, "METADATA"))
    assert metadata["Name"] == "loadmaster"
    assert metadata["Version"] == _project()["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert _metadata(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_source_distribution_can_be_built_and_tested(sdist: Path, tracked: set[str]) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {name for name in tracked if name.startswith((*PACKAGES, "tests/")) and not name.startswith("tests/data/")}
    needed |= {"pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt"}
    assert needed <= names
    assert names <= tracked | {"PKG-INFO"}


def test_the_version_is_told_the_same_everywhere() -> None:
    import loadmaster

    assert loadmaster.__version__ == _project()["version"]
    assert f"## [{loadmaster.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
