"""A checkpoint may have more files than a process may open."""

from __future__ import annotations

import pytest

from loadmaster_engine.load import reading
from loadmaster_engine.load.reading import FileSet
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.findings import Match
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef
from loadmaster_hookspecs.sources import RangeReader, Source

FILES = 10


class Bytes:
    """A reader of four bytes that say which file they are of."""

    def __init__(self, number: int, opened: set[int]) -> None:
        self.number, self.opened = number, opened
        opened.add(number)

    def read_into(self, offset: int, view: memoryview) -> int:
        content = bytes([self.number] * 4)[offset : offset + len(view)]
        view[: len(content)] = content
        return len(content)

    def mapping(self) -> memoryview | None:
        return memoryview(bytes([self.number] * 4))

    def close(self) -> None:
        self.opened.remove(self.number)


class Loader:
    name = "bytes"

    def __init__(self) -> None:
        self.opened: set[int] = set()
        self.most = 0

    def detect(self, source: Source) -> Match | None:
        raise NotImplementedError

    def open(self, source: Source) -> CheckpointIndex:
        raise NotImplementedError

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        reader = Bytes(file.id, self.opened)
        self.most = max(self.most, len(self.opened))
        return reader


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def files(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> FileSet:
    monkeypatch.setattr(reading, "OPEN_FILES", 3)
    refs = tuple(FileRef(id=n, name=f"f{n}", size=4, header_bytes=0, header_sha256="") for n in range(FILES))
    index = CheckpointIndex(source="", format="bytes", files=refs, tensors={}, config={}, fingerprint="")
    return FileSet(index, source=None, loader=loader)  # type: ignore[arg-type]


def test_a_bounded_number_of_files_is_open(loader: Loader, files: FileSet) -> None:
    for file in [*range(FILES), 0, 1, 9]:
        memory = memoryview(bytearray(4))
        files.read_into(file, 0, memory)
        assert bytes(memory) == bytes([file] * 4)
        mapping = files.mapping(file)
        assert mapping is not None
        assert bytes(mapping) == bytes([file] * 4)
    assert loader.most == 3
    assert files.by_call == 4 * (FILES + 3)
    files.close()
    assert loader.opened == set()


def test_a_file_that_ends_early_is_named(files: FileSet) -> None:
    with pytest.raises(IntegrityError, match="LM-FILE-TRUNCATED") as caught:
        files.read_into(7, 2, memoryview(bytearray(3)))
    assert caught.value.report.where == {"file": "f7", "offset": 2}
