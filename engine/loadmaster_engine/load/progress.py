"""Progress of one rank's load, as observers hear of it."""

from __future__ import annotations

import time

from loadmaster_hookspecs.events import Progress
from loadmaster_hookspecs.executors import EventSink
from loadmaster_hookspecs.plan import RankPlan

PROGRESS_INTERVAL = 0.2
"""Seconds between two progress events of one rank, at least."""


class ThrottledProgress:
    """Reports progress, but not more often than observers can show it."""

    def __init__(self, rank: RankPlan, emit: EventSink) -> None:
        self._rank = rank.rank
        self._total = rank.bytes_planned
        self._emit = emit
        self._next = 0.0

    def __call__(self, done: int) -> None:
        """Report the bytes that are done, unless that was done a moment ago. The end is always reported."""
        now = time.monotonic()
        if now >= self._next or done == self._total:
            self._next = now + PROGRESS_INTERVAL
            self._emit(Progress(rank=self._rank, stage="load", done=done, total=self._total))
