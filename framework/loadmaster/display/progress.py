"""The one progress display of a load. It lives in the host, is fed by events, and writes to a stream it is given."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from loadmaster.display.load_progress import FinishedStage, LoadProgress
from loadmaster.display.units import duration, rate, size
from loadmaster_hookspecs.events import Event, Notice, Progress

if TYPE_CHECKING:
    from loadmaster_engine.report import LoadReport

Clock = Callable[[], float]

MAX_PROGRESS_LINES = 12
"""Plain lines that report progress within one load. With one line per stage a load stays below thirty lines."""

_ALWAYS_TOLD = frozenset({"plan", "load"})
_SLOW_STAGE_S = 1.0
_LEAST_GAP_S = 2.0
_FIRST_WAIT_S = 5.0


class Display(Protocol):
    """Shows a load while it runs and sums it up at the end. Used as a context manager around the load."""

    def handle(self, event: Event) -> None:
        """Take in one event. Called on the thread that drives the engine; returns quickly."""
        ...

    def finish(self, report: LoadReport) -> None:
        """End the display and write the totals and one parseable line per rank."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def open_display(stream: TextIO, *, quiet: bool = False) -> Display:
    """Return the display that fits: none when quiet, a moving bar on a terminal, plain lines everywhere else."""
    if quiet:
        return SilentDisplay()
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        # rich costs a tenth of a second to import, and only a terminal needs it.
        from loadmaster.display.bar import BarDisplay

        return BarDisplay(stream)
    return PlainDisplay(stream)


class SilentDisplay:
    """Shows nothing."""

    def handle(self, event: Event) -> None:
        """Ignore the event."""

    def finish(self, report: LoadReport) -> None:
        """Write nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to release."""


class PlainDisplay:
    """Writes whole lines and no control characters: at every tenth of a stage, and rarer the longer nothing changes."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._progress = LoadProgress()
        self._notices: set[str] = set()
        self._lines_left = MAX_PROGRESS_LINES
        self._tenth = 0
        self._wait = _FIRST_WAIT_S
        self._last = clock()

    def handle(self, event: Event) -> None:
        """Write a line when the event is worth one."""
        stage = self._progress.stage
        finished = self._progress.observe(event, self._clock())
        if self._progress.stage != stage:
            self._tenth, self._last = 0, self._clock()
        if isinstance(event, Notice) and event.text not in self._notices:
            self._notices.add(event.text)
            self._write(f"note      {event.text}")
        elif isinstance(event, Progress):
            self._advance()
        elif finished and (finished.stage in _ALWAYS_TOLD or finished.seconds >= _SLOW_STAGE_S):
            self._write(stage_line(finished))

    def finish(self, report: LoadReport) -> None:
        """Write the totals and one line per rank."""
        self._write(summary(report))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to release: the stream belongs to the caller."""

    def _advance(self) -> None:
        """Write a line after a tenth of the stage, or after a wait that doubles every time nothing else was written."""
        progress, now = self._progress, self._clock()
        tenth, waited = int(progress.fraction * 10), now - self._last
        by_tenth = tenth > self._tenth and waited >= _LEAST_GAP_S
        # Lines for tenths still to come are kept in reserve, so that a slow start does not use them up.
        by_time = waited >= self._wait and self._lines_left > 9 - tenth
        if tenth >= 10 or not self._lines_left or not (by_tenth or by_time):
            return
        if not by_tenth:
            self._wait *= 2
        self._tenth, self._last = max(tenth, self._tenth), now
        self._lines_left -= 1
        parts = [f"{progress.stage:<8}  {progress.fraction:4.0%}", progress.amount, progress.laggard]
        self._write(", ".join(filter(None, parts)))

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def stage_line(finished: FinishedStage) -> str:
    """Return `load      0.31 s, 269.1 MB, 0.87 GB/s` for a stage that is over."""
    line = f"{finished.stage:<8}  {duration(finished.seconds)}"
    if not finished.nbytes:
        return line
    return f"{line}, {size(finished.nbytes)}, {rate(finished.nbytes, finished.seconds)}"


def summary(report: LoadReport) -> str:
    """Return the totals of a load and below them one parseable line per rank."""
    seconds = report.seconds.get("load", 0.0)
    total = report.seconds.get("total", 0.0)
    head = (
        f"loaded    {size(report.bytes_read)} in {duration(seconds)} ({rate(report.bytes_read, seconds)}), "
        f"every unique byte read {report.amplification:.3f} times, {duration(total)} in all"
    )
    return "\n".join([head, *(rank.line() for rank in report.ranks)])
