"""How a job becomes a response: what the two kinds of responses have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from loadmaster.serving.http.answers import Answer, Usage
from loadmaster.serving.http.jobs import Job
from loadmaster.serving.types import Delta


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A whole response, or a chunk of a stream. `usage` is null in the chunks before the one that tells it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[msgspec.Struct]
    usage: Usage | UnsetType | None


class Shape(ABC):
    """Makes the bodies of one kind of response, which differ in their choices."""

    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def opening(self, job: Job, index: int) -> Body | None:
        """Return the chunk that a choice's stream begins with, if there is one."""
        choice = self._beginning(job, index)
        return None if choice is None else self._chunk(job, choice)

    def chunk(self, job: Job, index: int, answer: Answer, delta: Delta) -> Body:
        """Return the chunk for what is new of a choice. `answer` is what the choice had produced before `delta`."""
        return self._chunk(job, self._piece(job, index, answer, delta))

    def closing(self, job: Job, usage: Usage) -> Body:
        """Return the chunk without choices that tells the usage."""
        return _body(job, self.chunk_object, [], usage)

    def whole(self, job: Job, answers: Sequence[Answer], usage: Usage) -> Body:
        """Return the response that is not a stream."""
        choices = [self._choice(job, index, answer) for index, answer in enumerate(answers)]
        return _body(job, self.whole_object, choices, usage)

    @abstractmethod
    def _beginning(self, job: Job, index: int) -> msgspec.Struct | None:
        """Return the piece that a choice's stream begins with, if there is one."""

    @abstractmethod
    def _piece(self, job: Job, index: int, answer: Answer, delta: Delta) -> msgspec.Struct:
        """Return what is new of a choice."""

    @abstractmethod
    def _choice(self, job: Job, index: int, answer: Answer) -> msgspec.Struct:
        """Return a whole choice."""

    def _chunk(self, job: Job, choice: msgspec.Struct) -> Body:
        return _body(job, self.chunk_object, [choice], None if job.include_usage else UNSET)


def _body(job: Job, kind: str, choices: list[msgspec.Struct], usage: Usage | UnsetType | None) -> Body:
    return Body(id=job.id, object=kind, created=job.created, model=job.model, choices=choices, usage=usage)
