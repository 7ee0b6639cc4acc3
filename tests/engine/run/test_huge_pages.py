"""Huge pages under memory of others: which pieces are asked for, and that what lies there stays."""

from __future__ import annotations

import mmap

import numpy as np

from loadmaster_engine.run.products.huge_pages import NEAR, PAGE, collapse, spans


def test_neighbours_are_one() -> None:
    assert spans([(300, 100), (0, 200), (NEAR + 401, 5)]) == [(0, 400), (NEAR + 401, NEAR + 406)]
    assert spans([(0, NEAR), (3 * NEAR, 8)]) == [(0, NEAR), (3 * NEAR, 3 * NEAR + 8)]
    assert spans([]) == []


def test_what_lies_there_stays_and_only_whole_pages_are_asked_for() -> None:
    memory = np.frombuffer(mmap.mmap(-1, 4 * PAGE), dtype=np.uint8)
    memory[:] = np.arange(len(memory), dtype=np.uint64).astype(np.uint8)
    before = memory.copy()
    address = int(memory.ctypes.data)
    start = -address % PAGE
    assert collapse([(address + start + 1, PAGE), (address + start + PAGE + 2, PAGE + 100)]) == PAGE
    assert collapse([(address + start + 1, PAGE)]) == 0
    assert np.array_equal(memory, before)
