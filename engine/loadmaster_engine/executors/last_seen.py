"""What a rank was last seen doing, as its events told it."""

from __future__ import annotations

import msgspec

from loadmaster_hookspecs.events import Event, Progress, Stage, StageStarted


class LastSeen(msgspec.Struct, frozen=True):
    """The last stage a rank reported and how far it got: `done` of `total` bytes, both 0 when it reported no progress.

    A rank that has reported nothing yet is in stage `spawn`.
    """

    stage: Stage = "spawn"
    done: int = 0
    total: int = 0

    def after(self, event: Event) -> LastSeen:
        """Return what is known once `event` has arrived."""
        match event:
            case StageStarted(stage=stage):
                return LastSeen(stage)
            case Progress(stage=stage, done=done, total=total):
                return LastSeen(stage, done, total)
            case _:
                return self

    def __str__(self) -> str:
        progress = f", {self.done} of {self.total} bytes done" if self.total else ""
        return f"stage {self.stage}{progress}"
