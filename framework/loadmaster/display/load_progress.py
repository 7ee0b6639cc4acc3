"""What a load is doing, folded out of the events of all ranks. Pure: the caller brings the clock."""

from __future__ import annotations

from typing import NamedTuple

from loadmaster.display.units import rate, size
from loadmaster_hookspecs.events import HOST_RANK, Event, Progress, Stage, StageFinished, StageStarted


class RankShare(NamedTuple):
    """A rank and the part of its bytes that it has moved, between 0 and 1."""

    rank: int
    fraction: float


class FinishedStage(NamedTuple):
    """A stage that every process which entered it has left, after `seconds`, having moved `nbytes`."""

    stage: Stage
    seconds: float
    nbytes: int


class LoadProgress:
    """The state of one load. Feed it events in order with `observe`; read the properties at any time."""

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self._began = 0.0
        self._now = 0.0
        self._moved: dict[int, Progress] = {}
        self._inside: dict[Stage, set[int]] = {}
        self._left: dict[Stage, dict[int, StageFinished]] = {}
        self._told: set[Stage] = set()

    def observe(self, event: Event, now: float) -> FinishedStage | None:
        """Take in one event at `now` seconds. Returns a stage when this event completed it for all ranks, once per stage."""
        self._now = now
        if isinstance(event, StageStarted):
            self._enter(event.stage, event.rank)
        elif isinstance(event, Progress):
            self._move(event)
        elif isinstance(event, StageFinished):
            return self._leave(event)
        return None

    @property
    def done(self) -> int:
        """Bytes that all ranks have moved in the current stage."""
        return sum(event.done for event in self._moved.values())

    @property
    def total(self) -> int:
        """Bytes to move in the current stage by the ranks that have reported."""
        return sum(event.total for event in self._moved.values())

    @property
    def fraction(self) -> float:
        """The moved part of the current stage, between 0 and 1."""
        return self.done / self.total if self.total else 0.0

    @property
    def slowest(self) -> RankShare | None:
        """The rank that is furthest behind, or None while fewer than two ranks report."""
        if len(self._moved) < 2:
            return None
        shares = [RankShare(rank, event.done / event.total if event.total else 1.0) for rank, event in self._moved.items()]
        return min(shares, key=lambda share: (share.fraction, share.rank))

    @property
    def amount(self) -> str:
        """Bytes and rate: `134.5 MB of 269.1 MB, 0.87 GB/s`."""
        return f"{size(self.done)} of {size(self.total)}, {rate(self.done, self._now - self._began)}"

    @property
    def laggard(self) -> str:
        """The slowest rank as text: `slowest rank 1 (38 %)`, or nothing."""
        share = self.slowest
        return f"slowest rank {share.rank} ({share.fraction:.0%})" if share else ""

    def _enter(self, stage: Stage, rank: int) -> None:
        self._inside.setdefault(stage, set()).add(rank)
        if stage != self.stage:
            self.stage, self._moved, self._began = stage, {}, self._now

    def _move(self, event: Progress) -> None:
        if event.stage != self.stage:
            self._enter(event.stage, event.rank)
        self._moved[event.rank] = event

    def _leave(self, event: StageFinished) -> FinishedStage | None:
        left = self._left.setdefault(event.stage, {})
        left[event.rank] = event
        entered = self._inside.get(event.stage, set())
        # The host enters a stage before its ranks do and leaves it after them, so where it takes part it has the last word.
        over = HOST_RANK in left if HOST_RANK in entered else entered <= left.keys()
        if not over or event.stage in self._told:
            return None
        self._told.add(event.stage)
        seconds = max(finished.seconds for finished in left.values())
        num_bytes = sum(finished.nbytes for rank, finished in left.items() if rank != HOST_RANK)
        return FinishedStage(event.stage, seconds, num_bytes or event.nbytes)
