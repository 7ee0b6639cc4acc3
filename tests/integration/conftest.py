"""What the tests with real worker processes share: a small model, and a check that nothing is left behind."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.executors.process_watch import MARK, becomes_true, children, marked
from tiny_models import make_model, save_model


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark that all processes started in the test inherit. Fails the test when one of them, or shared memory, is left."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    shared = sorted(os.listdir("/dev/shm"))
    before = set(children(os.getpid()))
    yield value
    assert becomes_true(lambda: not marked(value), 5.0), f"left behind: {marked(value)}"
    assert set(children(os.getpid())) <= before, "a zombie is left"
    assert sorted(os.listdir("/dev/shm")) == shared


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with three key-value heads for nine query heads."""
    model = make_model("llama", num_attention_heads=9, num_key_value_heads=3, head_dim=8, hidden_size=72)
    return save_model(model, tmp_path_factory.mktemp("llama"))
