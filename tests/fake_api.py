"""Stand-ins for the public Python API, so that the command line is tested without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from loadmaster import Completion
from loadmaster_engine.report import LoadReport, RankReport
from loadmaster_hookspecs.events import Event, Notice, Progress, StageFinished, StageStarted


def sample_report(num_ranks: int = 2, seconds: float = 0.5) -> LoadReport:
    """Return a report of ranks that read 100 MB each, nothing twice."""
    ranks = tuple(
        RankReport(
            rank=rank,
            seconds={"load": seconds},
            bytes_planned=100_000_000,
            bytes_read=100_000_000,
            bytes_repeated=0,
            bytes_by_call=100_000_000,
            bytes_mapped=0,
            bytes_arena=100_000_000,
            peak_rss=300_000_000,
        )
        for rank in range(num_ranks)
    )
    total = 100_000_000 * num_ranks
    return LoadReport(
        digest="d" * 64,
        seconds={"load": seconds, "total": 2 * seconds},
        bytes_planned=total,
        bytes_read=total,
        bytes_unique=total,
        ranks=ranks,
    )


class FakeEngine:
    """Records how it was made and asked, and answers `echo: PROMPT`."""

    made: ClassVar[list[FakeEngine]] = []

    def __init__(self, path: str, on_event: Callable[[Event], None] | None = None, **settings: Any) -> None:
        self.path, self.settings = path, settings
        self.asked: dict[str, Any] = {}
        self.closed = False
        self.report = sample_report()
        self.notices = ("temperature 0.1 from generation_config.json",)
        FakeEngine.made.append(self)
        if on_event is not None:
            for event in _events():
                on_event(event)

    def generate(self, prompts: Sequence[str], **settings: Any) -> list[Completion]:
        self.asked = {"prompts": list(prompts), **settings}
        return [Completion(text=f"echo: {prompt}", token_ids=(1, 2), finish_reason="stop") for prompt in prompts]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.closed = True


def _events() -> list[Event]:
    return [
        StageStarted(rank=-1, stage="load"),
        Notice(rank=-1, text="temperature 0.1 from generation_config.json"),
        Progress(rank=0, stage="load", done=50_000_000, total=100_000_000),
        StageFinished(rank=-1, stage="load", seconds=0.5, nbytes=200_000_000),
    ]
