"""What the tests of the executors share: an executor that is always stopped, and what they deliver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.executors.process_watch import open_files
from loadmaster_engine.executors.inline import InlineFactory
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory
from loadmaster_hookspecs.events import Event
from loadmaster_hookspecs.executors import Executor


@pytest.fixture
def events() -> list[Event]:
    """The events that the executors of the test delivered."""
    return []


@pytest.fixture
def workers(mark: str, events: list[Event]) -> Iterator[Executor]:
    """A multiprocess executor without preloaded modules, not started."""
    before = len(open_files(os.getpid()))
    executor = MultiprocessFactory().create(preload=(), on_event=events.append)
    yield executor
    executor.stop()
    assert len(open_files(os.getpid())) <= before, "descriptors are left open"  # others may be collected meanwhile


@pytest.fixture
def inline(events: list[Event]) -> Iterator[Executor]:
    """An inline executor, not started."""
    executor = InlineFactory().create(preload=(), on_event=events.append)
    yield executor
    executor.stop()


@pytest.fixture
def close_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where toy services note that they were closed."""
    path = tmp_path / "closed.txt"
    path.touch()
    monkeypatch.setenv("TOY_CLOSE_LOG", str(path))
    return path
