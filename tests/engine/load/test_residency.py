"""What the kernel says about pages in memory, and what it reads ahead, against files that were dropped and read in parts."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from loadmaster_engine.load.readahead import will_need
from loadmaster_engine.load.residency import PAGE, absent


@pytest.fixture
def file(tmp_path: Path) -> Path:
    if tmp_path.is_relative_to("/dev/shm"):
        pytest.skip("files in memory cannot be dropped from it")
    path = tmp_path / "file"
    with path.open("wb") as out:
        out.write(os.urandom(64 * PAGE + 100))
        out.flush()
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def mapped(path: Path) -> memoryview:
    with path.open("rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


def test_a_dropped_file_is_absent_in_pieces_and_a_read_one_is_not(file: Path) -> None:
    view = mapped(file)
    size = len(view)
    pieces = list(absent(view, 0, size, 16 * PAGE))
    assert pieces == [(start, min(size, start + 16 * PAGE)) for start in range(0, size, 16 * PAGE)]
    file.read_bytes()
    assert list(absent(view, 0, size, 16 * PAGE)) == []


def test_only_the_pieces_with_an_absent_page_are_named(file: Path) -> None:
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: exactly one page comes in
        os.pread(opened.fileno(), 1, 3 * PAGE)
    view = mapped(file)
    assert list(absent(view, 2 * PAGE + 7, 5 * PAGE, PAGE)) == [(2 * PAGE, 3 * PAGE), (4 * PAGE, 5 * PAGE)]


def test_what_is_needed_soon_comes_in_without_being_touched(file: Path) -> None:
    view = mapped(file)
    will_need(view, 5 * PAGE + 9, len(view) + PAGE)
    deadline = time.monotonic() + 10
    while list(absent(view, 5 * PAGE, len(view), PAGE)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_memory_that_is_no_mapping_needs_no_advice() -> None:
    will_need(memoryview(bytearray(10 * PAGE))[5:], 0, 9 * PAGE)
    will_need(memoryview(b""), 0, 10)


def test_memory_that_is_no_mapping_counts_as_present() -> None:
    assert list(absent(memoryview(bytearray(10 * PAGE))[5:], 0, 9 * PAGE, PAGE)) == []
    assert list(absent(memoryview(b""), 0, 0, PAGE)) == []
