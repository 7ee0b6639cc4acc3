"""The progress display of a terminal: one moving line, replaced by the summary when the load is over."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from loadmaster.display.load_progress import LoadProgress
from loadmaster.display.progress import Clock, summary
from loadmaster_hookspecs.events import Event, Notice

if TYPE_CHECKING:
    from loadmaster_engine.report import LoadReport


class BarDisplay:
    """Draws a bar with stage, bytes, rate and the slowest rank. It is redrawn by events alone and starts no thread."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._console = Console(file=stream, highlight=False)
        self._clock = clock
        self._progress = LoadProgress()
        self._notices: set[str] = set()
        columns = (TextColumn("{task.description:<10}", style="bold"), BarColumn(30), TextColumn("{task.fields[detail]}"))
        # A refresh thread in the host would be copied, mid-lock, into every process that is forked from it.
        self._bar = Progress(*columns, console=self._console, transient=True, auto_refresh=False)
        self._task = self._bar.add_task("starting", total=None, detail="")

    def handle(self, event: Event) -> None:
        """Redraw the bar, and write a notice above it once."""
        self._progress.observe(event, self._clock())
        if isinstance(event, Notice) and event.text not in self._notices:
            self._notices.add(event.text)
            self._console.print(f"note      {event.text}", markup=False, soft_wrap=True)
        progress = self._progress
        detail = ", ".join(filter(None, (progress.amount, progress.laggard))) if progress.total else ""
        self._bar.update(
            self._task,
            description=progress.stage or "starting",
            completed=progress.done,
            total=progress.total or None,
            detail=detail,
            refresh=True,
        )

    def finish(self, report: LoadReport) -> None:
        """Take the bar away and write the totals and one line per rank."""
        self._bar.stop()
        self._console.print(summary(report), markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Take the bar away and give the terminal its cursor back."""
        self._bar.stop()
