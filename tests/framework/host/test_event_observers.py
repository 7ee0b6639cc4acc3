from __future__ import annotations

import logging

import pytest

from loadmaster.host import PluginHost, PluginSelection
from loadmaster_hookspecs import IntegrityError, hookimpl
from loadmaster_hookspecs.events import Event, Notice

ALONE = PluginSelection(blocked=("loadmaster",))
EVENT = Notice(rank=0, text="hello")


class Listener:
    """Remembers events, and raises what it was told to raise."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.events: list[Event] = []
        self.error = error

    @hookimpl
    def loadmaster_event(self, event: Event) -> None:
        self.events.append(event)
        if self.error:
            raise self.error


class Deaf:
    """Wants to know that something happened, and not what."""

    def __init__(self) -> None:
        self.calls = 0

    @hookimpl
    def loadmaster_event(self) -> None:
        self.calls += 1


def test_every_observer_hears_every_event_in_order() -> None:
    one, two, deaf = Listener(), Listener(), Deaf()
    host = PluginHost(ALONE, [one, two, deaf])
    second = Notice(rank=1, text="again")
    host.emit(EVENT)
    host.emit(second)
    assert one.events == two.events == [EVENT, second]
    assert deaf.calls == 2


@pytest.mark.parametrize("error", [ValueError("too loud"), SystemExit("too loud"), IntegrityError("LM-X", "too loud")])
def test_a_failing_observer_is_reported_once_and_left_out(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    failing, healthy = Listener(error), Listener()
    host = PluginHost(ALONE, [failing, healthy])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            host.emit(EVENT)
    assert len(failing.events) == 1
    assert len(healthy.events) == 3
    (record,) = caplog.records
    assert record.name.startswith("loadmaster.host")
    assert "Listener" in record.getMessage()
    assert "too loud" in record.getMessage()


def test_an_interrupt_is_not_the_observers_fault() -> None:
    host = PluginHost(ALONE, [Listener(KeyboardInterrupt())])
    with pytest.raises(KeyboardInterrupt):
        host.emit(EVENT)
