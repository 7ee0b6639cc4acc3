from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest

from fake_api import sample_report
from loadmaster.display.bar import BarDisplay
from loadmaster.display.load_progress import LoadProgress
from loadmaster.display.progress import PlainDisplay, SilentDisplay, open_display
from loadmaster_hookspecs.events import Event, Failed, Notice, Progress, Stage, StageFinished, StageStarted

STAGES: tuple[Stage, ...] = (
    "discover",
    "index",
    "plan",
    "spawn",
    "manifest",
    "rendezvous",
    "reserve",
    "load",
    "bind",
    "verify",
)


class Clock:
    """A clock that tests set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _load(num_ranks: int, seconds: float, updates: int) -> Iterator[tuple[float, Event]]:
    """Yield a whole load with its times: every stage slow, the load stage with `updates` reports of every rank."""
    for stage in STAGES:
        for rank in range(-1, num_ranks):
            yield 0.0, StageStarted(rank=rank, stage=stage)
        for update in range(updates if stage == "load" else 0):
            for rank in range(num_ranks):
                yield seconds / updates / num_ranks, Progress(rank=rank, stage="load", done=update + 1, total=updates)
        for rank in range(num_ranks):
            yield 0.0, StageFinished(rank=rank, stage=stage, seconds=2.0, nbytes=5)
        yield 2.0, StageFinished(rank=-1, stage=stage, seconds=2.0)


@pytest.mark.parametrize("seconds", [0.1, 5, 60, 600, 7200])
def test_a_load_is_fewer_than_thirty_plain_lines(seconds: float) -> None:
    stream, clock = io.StringIO(), Clock()
    with PlainDisplay(stream, clock) as display:
        for wait, event in _load(num_ranks=4, seconds=seconds, updates=400):
            clock.now += wait
            display.handle(event)
        display.finish(sample_report(4))
    text = stream.getvalue()
    assert len(text.splitlines()) < 30
    assert "\r" not in text
    assert "\x1b" not in text


def test_a_long_load_reports_every_tenth() -> None:
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock)
    for wait, event in _load(num_ranks=1, seconds=600, updates=400):
        clock.now += wait
        display.handle(event)
    told = {int(percent) // 10 for percent in re.findall(r"load +(\d+)%", stream.getvalue())}
    assert told == set(range(10))


def test_a_stall_is_told_in_growing_intervals() -> None:
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock)
    told: list[int] = []
    for second in range(100):
        clock.now = float(second)
        display.handle(Progress(rank=0, stage="load", done=5, total=100))
        if len(stream.getvalue().splitlines()) > len(told):
            told.append(second)
    assert told == [5, 15, 35]


def test_a_line_has_percent_bytes_rate_and_the_slowest_rank() -> None:
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock)
    display.handle(StageStarted(rank=0, stage="load"))
    display.handle(Progress(rank=0, stage="load", done=0, total=100_000_000))
    clock.now = 4.0
    display.handle(Progress(rank=1, stage="load", done=20_000_000, total=100_000_000))
    clock.now = 8.0
    display.handle(Progress(rank=0, stage="load", done=60_000_000, total=100_000_000))
    assert stream.getvalue() == (
        "load       10%, 20.0 MB of 200.0 MB, 0.01 GB/s, slowest rank 0 (0%)\n"
        "load       40%, 80.0 MB of 200.0 MB, 0.01 GB/s, slowest rank 1 (20%)\n"
    )


def test_a_finished_stage_is_told_once_with_its_bytes() -> None:
    progress = LoadProgress()
    for rank in (0, 1):
        progress.observe(StageStarted(rank=rank, stage="load"), 0.0)
    assert progress.observe(StageFinished(rank=1, stage="load", seconds=2.0, nbytes=30), 2.0) is None
    finished = progress.observe(StageFinished(rank=0, stage="load", seconds=3.0, nbytes=40), 3.0)
    assert finished == ("load", 3.0, 70)
    assert progress.observe(StageFinished(rank=0, stage="load", seconds=3.0), 3.0) is None


def test_the_host_has_the_last_word_about_a_stage() -> None:
    progress = LoadProgress()
    for rank in (-1, 0):
        progress.observe(StageStarted(rank=rank, stage="load"), 0.0)
    assert progress.observe(StageFinished(rank=0, stage="load", seconds=1.0, nbytes=7), 1.0) is None
    assert progress.observe(StageFinished(rank=-1, stage="load", seconds=1.5, nbytes=7), 1.5) == ("load", 1.5, 7)


def test_a_notice_is_told_once() -> None:
    for stream in (io.StringIO(), Terminal()):
        with open_display(stream) as display:
            for _ in range(3):
                display.handle(Notice(rank=-1, text="dtype [bf16] from the tensors"))
        assert stream.getvalue().count("dtype [bf16] from the tensors") == 1


def test_the_summary_ends_with_one_parseable_line_per_rank() -> None:
    for display_type in (PlainDisplay, BarDisplay):
        stream = io.StringIO()
        with display_type(stream) as display:
            display.finish(sample_report(3))
        lines = stream.getvalue().rstrip("\n").splitlines()[-4:]
        assert lines[0] == ("loaded    300.0 MB in 0.50 s (0.60 GB/s), every unique byte read 1.000 times, 1.00 s in all")
        for rank, line in enumerate(lines[1:]):
            head, *pairs = line.split()
            assert head == "loadmaster"
            values = dict(pair.split("=") for pair in pairs)
            assert values["rank"] == str(rank)
            assert float(values["mb_per_s"]) == pytest.approx(int(values["bytes"]) / float(values["seconds"]) / 1e6)
            assert float(values["peak_rss_mb"]) == 300.0


def test_the_kind_of_display_follows_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(open_display(Terminal(), quiet=True), SilentDisplay)
    assert isinstance(open_display(io.StringIO()), PlainDisplay)
    assert isinstance(open_display(Terminal()), BarDisplay)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_display(Terminal()), PlainDisplay)


def test_a_silent_display_writes_nothing() -> None:
    stream = Terminal()
    with open_display(stream, quiet=True) as display:
        display.handle(Notice(rank=0, text="hello"))
        display.finish(sample_report())
    assert stream.getvalue() == ""


def test_the_bar_shows_stage_amount_and_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream, clock = Terminal(), Clock()
    with BarDisplay(stream, clock) as display:
        display.handle(StageStarted(rank=0, stage="load"))
        display.handle(Progress(rank=0, stage="load", done=0, total=50_000_000))
        clock.now = 0.1
        display.handle(Progress(rank=1, stage="load", done=50_000_000, total=50_000_000))
        display.handle(Failed(rank=1, stage="load", code="LM-X", summary="gone"))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert "load" in text
    assert "50.0 MB of 100.0 MB, 0.50 GB/s, slowest rank 0 (0%)" in text
