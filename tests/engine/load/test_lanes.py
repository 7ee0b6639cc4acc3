"""How many threads read: as many as processors where bytes are in memory, several where they are waited for."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from loadmaster_engine.load.lanes import LANES, in_lanes, lanes_for
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.plan.shares import FileRange
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef
from loadmaster_hookspecs.sources import RangeReader
from loadmaster_plugins.local_source.reader import LocalReader

SIZE = 64 << 10


class Loader:
    """A format of one file, which can be mapped or not."""

    def __init__(self, file: Path, mappable: bool) -> None:
        self.file, self.mappable = file, mappable

    def reader(self, source: object, file: FileRef) -> RangeReader:
        reader = LocalReader(os.open(self.file, os.O_RDONLY))
        if not self.mappable:
            reader.mapping = lambda: None  # type: ignore[method-assign,assignment,return-value]
        return reader


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    with path.open("wb") as out:
        out.write(os.urandom(SIZE))
        out.flush()
        os.fsync(out.fileno())
    return path


def file_set(file: Path, *, mappable: bool = True) -> FileSet:
    ref = FileRef(id=0, name="file", size=SIZE, header_bytes=0, header_sha256="")
    index = CheckpointIndex(source="", format="", files=(ref,), tensors={}, config={}, fingerprint="")
    return FileSet(index, source=None, loader=Loader(file, mappable))  # type: ignore[arg-type]


HALVES = [FileRange(0, 0, SIZE // 2), FileRange(0, SIZE // 2, SIZE)]


@pytest.mark.parametrize(("processors", "ranks", "lanes"), [(1, 1, 1), (2, 2, 1), (2, 1, 2), (6, 2, 3), (64, 2, LANES)])
def test_bytes_in_memory_get_a_lane_per_processor(
    file: Path, monkeypatch: pytest.MonkeyPatch, processors: int, ranks: int, lanes: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)))
    file.read_bytes()
    files = file_set(file)
    assert lanes_for(files, HALVES, ranks) == lanes
    files.close()


def test_what_is_waited_for_gets_all_lanes(file: Path, tmp_path: Path) -> None:
    assert lanes_for(file_set(file, mappable=False), HALVES, 2) == LANES
    if tmp_path.is_relative_to("/dev/shm"):
        pytest.skip("files in memory cannot be dropped from it")
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(opened.fileno(), 1, 0)  # the first half is there in part, the second is not
    files = file_set(file)
    assert lanes_for(files, HALVES, 2) == LANES
    files.close()


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_lanes_work_at_the_same_time_and_answer_in_order(file: Path, lanes: int) -> None:
    files = file_set(file)
    meeting = threading.Barrier(lanes, timeout=10)  # breaks unless that many are at work together

    def read(own: FileSet, item: int) -> int:
        meeting.wait()
        own.read_into(0, item, memoryview(bytearray(8)))
        return item

    assert list(in_lanes(files, range(6), read, lanes)) == list(range(6))
    assert files.by_call == 6 * 8
    files.close()
