"""What tests of several folders share: one compute thread each, and a check that no process and no memory is left behind."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest

from engine.executors.process_watch import MARK, becomes_true, children, marked

# Tests run side by side, one process per core. With more threads each they would wait for each other, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark that all processes started in the test inherit. Fails the test when one of them, or a zombie, is left."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    shared = set(os.listdir("/dev/shm"))
    before = set(children(os.getpid()))
    yield value
    assert becomes_true(lambda: not marked(value), 5.0), f"left behind: {marked(value)}"
    assert set(children(os.getpid())) <= before, "a zombie is left"
    assert set(os.listdir("/dev/shm")) <= shared  # other programs of the machine may have removed theirs
