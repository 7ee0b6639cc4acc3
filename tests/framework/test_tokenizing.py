"""A tokenizer that is made ahead is made once, and its errors reach who asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest

from loadmaster import tokenizing
from loadmaster.tokenizing import TokenizerAhead
from loadmaster_hookspecs.errors import UsageError
from loadmaster_hookspecs.models import Tokenizer


class Maker:
    """Notes on which threads it was called; does what it is told on each call."""

    def __init__(self, *outcomes: Exception | Callable[[], object] | None) -> None:
        self.outcomes = list(outcomes)
        self.threads: list[str] = []
        self.tokenizer = cast(Tokenizer, object())

    def __call__(self) -> Tokenizer:
        self.threads.append(threading.current_thread().name)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            outcome()
        return self.tokenizer


def test_it_is_made_by_the_first_who_asks() -> None:
    make = Maker()
    tokenizer = TokenizerAhead(make)
    assert make.threads == []
    assert tokenizer.get() is tokenizer.get() is make.tokenizer
    assert make.threads == [threading.current_thread().name]


def test_made_ahead_it_is_waited_for_and_not_made_again() -> None:
    gate = threading.Event()
    make = Maker(lambda: gate.wait(10))
    tokenizer = TokenizerAhead(make)
    tokenizer.begin()
    threading.Timer(0.05, gate.set).start()
    assert tokenizer.get() is tokenizer.get() is make.tokenizer
    assert make.threads == ["loadmaster-tokenizer"]


def test_a_failure_ahead_is_met_again_by_who_asks() -> None:
    make = Maker(UsageError("LM-TOY", "none there"), UsageError("LM-TOY", "still none"))
    tokenizer = TokenizerAhead(make)
    tokenizer.begin()
    with pytest.raises(UsageError, match="still none"):
        tokenizer.get()
    assert tokenizer.get() is make.tokenizer
    assert make.threads == ["loadmaster-tokenizer", *[threading.current_thread().name] * 2]


def test_one_that_is_stuck_is_not_waited_for_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "PATIENCE", 0.02)
    gate = threading.Event()
    make = Maker(lambda: gate.wait(10))
    tokenizer = TokenizerAhead(make)
    tokenizer.begin()
    assert tokenizer.get() is make.tokenizer
    assert len(make.threads) == 2
    gate.set()
