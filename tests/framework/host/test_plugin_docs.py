from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

import loadmaster.host
from fake_distribution import FakeSite
from loadmaster.host import PluginHost, PluginSelection
from loadmaster.host.info import Status
from loadmaster.host.inspection import new_manager
from loadmaster_hookspecs import API_VERSION, IntegrityError
from loadmaster_hookspecs.formats import FileRef, TensorMeta
from loadmaster_hookspecs.sources import FileEntry, RangeReader

PAGE = (Path(__file__).parents[3] / "docs" / "plugins.md").read_text(encoding="utf-8")
ALONE = PluginSelection(blocked=("loadmaster",))


def block(language: str, number: int = 0) -> str:
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return blocks[number]


class Folder:
    """A source over a folder, with as much as the example needs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = str(path)
        self.bytes_read = 0
        self.opened: list[str] = []

    def files(self) -> tuple[FileEntry, ...]:
        return tuple(FileEntry(name=path.name, size=path.stat().st_size) for path in sorted(self.path.iterdir()))

    def size(self, name: str) -> int:
        return (self.path / name).stat().st_size

    def read(self, name: str, offset: int, size: int) -> bytes:
        return (self.path / name).read_bytes()[offset : offset + size]

    def open(self, name: str) -> RangeReader:
        self.opened.append(name)
        return object()  # type: ignore[return-value]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    tensors = {"weight": {"dtype": "F32", "shape": [2, 3], "start": 0, "stop": 24}}
    (folder / "flat.json").write_text(json.dumps({"config": {"model_type": "toy"}, "tensors": tensors}), encoding="utf-8")
    (folder / "flat.bin").write_bytes(bytes(24))
    return folder


@pytest.fixture
def host(site: FakeSite) -> PluginHost:
    project = tomllib.loads(block("toml"))["project"]
    plugins = project["entry-points"]["loadmaster"]
    site.install(project["name"], project["version"], plugins, {"flat_format": block("python")})
    return PluginHost(ALONE)


def test_the_example_is_a_plugin_that_reads_its_format(host: PluginHost, checkpoint: Path) -> None:
    source = Folder(checkpoint)
    loader = host.detect_format(source)
    index = loader.open(source)
    assert index.format == loader.name == "flat"
    assert index.tensors["weight"] == TensorMeta(name="weight", dtype="F32", shape=(2, 3), file=0, start=0, stop=24)
    assert index.config == {"model_type": "toy"}
    loader.reader(source, index.files[0])
    assert source.opened == ["flat.bin"]


def test_the_example_refuses_damaged_files(host: PluginHost, checkpoint: Path) -> None:
    source = Folder(checkpoint)
    loader = host.format("flat")
    planned: FileRef = loader.open(source).files[0]
    (checkpoint / "flat.bin").write_bytes(bytes(20))
    with pytest.raises(IntegrityError, match="ends at byte 24, the file at byte 20"):
        loader.open(source)
    with pytest.raises(IntegrityError, match=r"flat\.bin is not the file"):
        loader.reader(source, planned)
    (checkpoint / "flat.json").unlink()
    with pytest.raises(IntegrityError, match="LM-FORMAT-UNKNOWN"):
        host.detect_format(source)


def test_the_python_call_on_the_page_works(host: PluginHost) -> None:
    names: dict[str, object] = {}
    exec(block("python", 1).replace("allowed=()", "allowed=(), blocked=('loadmaster',)"), names)
    passed = names["host"]
    assert isinstance(passed, PluginHost)
    assert passed.format("flat").name == "flat"


def test_the_page_names_every_hook_status_and_code() -> None:
    hooks = {name for name in vars(new_manager().hook) if not name.startswith("_")}
    assert set(re.findall(r"^\| `(loadmaster_\w+)\(", PAGE, re.MULTILINE)) == hooks
    section = PAGE.partition("## What is installed")[2].partition("## Choose")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(get_args(Status))
    source = "".join(path.read_text(encoding="utf-8") for path in Path(loadmaster.host.__path__[0]).glob("*.py"))
    codes = set(re.findall(r'"(LM-[A-Z-]+)"', source))
    assert set(re.findall(r"`(LM-(?!FLAT)[A-Z-]+)`", PAGE)) == codes
    assert f"loadmaster_api_version = {API_VERSION}" in PAGE
