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


def test_what_is_made_inside_is_old_and_not_walked_at_once() -> None:
    with collector_paused():
        made: list[object] = [[] for _ in range(20_000)]
    assert not any(each is made for each in gc.get_objects(generation=0))
    assert any(each is made for each in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with collector_paused():
            pass
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()


def test_a_function_can_be_paused_more_than_once() -> None:
    paused = collector_paused()(gc.isenabled)
    assert [paused(), paused()] == [False, False]
    assert gc.isenabled()
