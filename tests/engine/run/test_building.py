"""Models are built beside the load: one at a time in a process, and errors reach the one who waits for the model."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from loadmaster_engine.run.building import begin_build
from sample_plan import sample_plan


class Host:
    """A host with one family, whose build takes a moment and notes how many run at once."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.now = self.most = 0
        self.threads: set[str] = set()

    def family(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, build=self.build)

    @contextlib.contextmanager
    def attributed(self, owner: object, call: str) -> Iterator[None]:
        yield

    def build(self, config: object, dtype: str, placements: object) -> tuple[object, str, object]:
        self.threads.add(threading.current_thread().name)
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.05)
        self.now -= 1
        if self.error:
            raise self.error
        return config, dtype, placements


def test_builds_of_one_process_take_turns_beside_the_caller() -> None:
    host, plan = Host(), sample_plan()
    begun = [begin_build(host, plan) for _ in range(3)]  # type: ignore[arg-type]
    assert not all(outcome.done() for outcome in begun)
    for outcome in begun:
        assert outcome.result(timeout=10) == (plan.config, plan.dtype, plan.ranks[0].modules)  # type: ignore[comparison-overlap]
    assert host.most == 1
    assert host.threads == {"loadmaster-build"}


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3)])
def test_what_a_build_raises_reaches_the_one_who_waits(error: BaseException) -> None:
    outcome = begin_build(Host(error), sample_plan())  # type: ignore[arg-type]
    with pytest.raises(type(error)) as caught:
        outcome.result(timeout=10)
    assert caught.value is error
