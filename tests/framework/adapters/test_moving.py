"""Bringing an adapter in, against ranks that are played: slices stay short, and one rank's error leaves nothing anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import loadmaster as lm
from loadmaster.adapters import moving
from loadmaster.adapters.moving import Answer, bring_in, take_away
from loadmaster_engine.run.messages import decode
from loadmaster_engine.serve.adapter_messages import AdapterBuild, AdapterClose, AdapterMove, AdapterOpen, AdapterState
from loadmaster_hookspecs.errors import IntegrityError, ResourceError, WorkerError
from sample_adapter import sample_adapter

TOTAL = 1000
PARTS = 40
PART = 0.001
SLICE = 0.01


class Ranks:
    """Two ranks that move 10 bytes per millisecond, and build a part in `PART` seconds."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self.built: list[int] = []
        self.open: set[int] = set()
        self._fails = fails
        self._moved = 0

    def ask(self, op: str, bodies: bytes | Sequence[bytes]) -> Answer:
        self.calls.append(op)
        seconds = 0.0
        if op == "adapter_open":
            assert [decode(body, AdapterOpen).plan.ranks[0].rank for body in bodies] == [0, 1]  # type: ignore[arg-type]
            self.open.add(7)
            return self._answer(op, seconds)
        assert isinstance(bodies, bytes)
        if op == "adapter_move":
            seconds = decode(bodies, AdapterMove).seconds
            self._moved = min(TOTAL, self._moved + int(seconds * 10_000))
        elif op == "adapter_build":
            parts = min(decode(bodies, AdapterBuild).parts, PARTS - sum(self.built))
            self.built.append(parts)
            seconds = parts * PART
        else:
            self.open.remove(decode(bodies, AdapterClose).number)
        return self._answer(op, seconds)

    def _answer(self, op: str, seconds: float) -> Answer:
        error = IntegrityError("LM-FILE-SHORT", "the file ends early").report if op == self._fails else None
        good = AdapterState(number=7, nbytes=50, moved=self._moved, total=TOTAL, built=sum(self.built), parts=PARTS)
        if error is None:
            return Answer([good, good], seconds)
        stopped = AdapterState(number=7, error=WorkerError("LM-ADAPTER-RANKS", "another rank failed").report)
        return Answer([stopped if op == "adapter_build" else good, AdapterState(number=7, error=error)], seconds)


def test_slices_fill_their_time_and_no_more() -> None:
    ranks = Ranks()
    bring_in(ranks.ask, sample_adapter(), 7, lambda: SLICE)
    assert ranks.calls.count("adapter_move") == 10
    assert sum(ranks.built) == PARTS
    assert ranks.built[:3] == [5, 10, 10]
    assert all(parts * PART <= SLICE for parts in ranks.built)
    assert take_away(ranks.ask, 7) == 100
    assert not ranks.open


@pytest.mark.parametrize("op", ["adapter_open", "adapter_move", "adapter_build"])
def test_an_error_of_one_rank_is_located_and_all_ranks_give_everything_back(op: str) -> None:
    ranks = Ranks(fails=op)
    with pytest.raises(lm.IntegrityError, match="ends early") as caught:
        bring_in(ranks.ask, sample_adapter(), 7, lambda: SLICE)
    assert caught.value.report.where == {"adapter": "mine", "rank": 1}
    assert ranks.calls[-2:] == [op, "adapter_close"]
    assert not ranks.open


def test_an_opening_that_nobody_heard_the_answer_of_is_taken_back() -> None:
    ranks = Ranks()

    def ask(op: str, bodies: bytes | Sequence[bytes]) -> Answer:
        answer = ranks.ask(op, bodies)
        if op == "adapter_open":
            raise ResourceError("LM-ENGINE-BUSY", "the ranks had no time")
        return answer

    with pytest.raises(lm.ResourceError, match="LM-ENGINE-BUSY"):
        bring_in(ask, sample_adapter(), 7, lambda: SLICE)
    assert ranks.calls == ["adapter_open", "adapter_close"]
    assert not ranks.open


def test_an_adapter_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "ARRIVAL_SECONDS", -1e6)
    ranks = Ranks()
    with pytest.raises(lm.WorkerError, match="LM-ADAPTER-SLOW"):
        bring_in(ranks.ask, sample_adapter(), 7, lambda: SLICE)
    assert not ranks.open
