"""How a job becomes a response: what the two kinds of responses have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from loadmaster.serving.http.answers import Answer, Usage
from loadmaster.serving.http.jobs import Job
from loadmaster.serving.types import Delta


class Shape(Protocol):
    """Makes the records of one kind of response. `answer` is what the choice had produced before `delta`."""

    def opening(self, job: Job, index: int) -> msgspec.Struct | None:
        """Return the chunk that a choice's stream begins with, if there is one."""
        ...

    def chunk(self, job: Job, index: int, answer: Answer, delta: Delta) -> msgspec.Struct:
        """Return the chunk for what is new of a choice."""
        ...

    def closing(self, job: Job, usage: Usage) -> msgspec.Struct:
        """Return the chunk without choices that tells the usage."""
        ...

    def whole(self, job: Job, answers: Sequence[Answer], usage: Usage) -> msgspec.Struct:
        """Return the response that is not a stream."""
        ...
