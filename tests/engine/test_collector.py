"""The collector rests inside and is afterwards as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from loadmaster_engine.collector import collector_paused


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_rests_inside_and_goes_on_afterwards() -> None:
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()


def test_a_pause_within_a_pause_does_not_end_it() -> None:
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_a_function_can_be_paused_more_than_once() -> None:
    paused = collector_paused()(gc.isenabled)
    assert [paused(), paused()] == [False, False]
    assert gc.isenabled()
