"""Responses of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from loadmaster.serving.http.answers import Answer, Usage
from loadmaster.serving.http.jobs import Job
from loadmaster.serving.http.logprobs import CompletionLogprobs, completion_logprobs
from loadmaster.serving.types import Delta, FinishReason, TokenLogprob


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None


class CompletionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A whole response and a chunk of a stream have the same form."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class CompletionShape:
    """Makes completion responses; with `echo` every text begins with its prompt."""

    def __init__(self, *, echo: bool) -> None:
        self._echo = echo

    def opening(self, job: Job, index: int) -> CompletionBody | None:
        """Return the chunk with the prompt where it is echoed."""
        if not self._echo:
            return None
        return _body(job, [CompletionChoice(index=index, text=job.choices[index].prompt.text)], _no_usage(job))

    def chunk(self, job: Job, index: int, answer: Answer, delta: Delta) -> CompletionBody:
        """Return the chunk for what is new of a choice."""
        choice = CompletionChoice(
            index=index,
            text=delta.text,
            logprobs=self._logprobs(job, index, delta.logprobs, answer.characters),
            finish_reason=delta.finish_reason,
        )
        return _body(job, [choice], _no_usage(job))

    def closing(self, job: Job, usage: Usage) -> CompletionBody:
        """Return the chunk that tells the usage."""
        return _body(job, [], usage)

    def whole(self, job: Job, answers: Sequence[Answer], usage: Usage) -> CompletionBody:
        """Return the response that is not a stream."""
        choices = [
            CompletionChoice(
                index=index,
                text=self._prompt(job, index) + answer.text,
                logprobs=self._logprobs(job, index, answer.logprobs, 0),
                finish_reason=answer.finish_reason,
            )
            for index, answer in enumerate(answers)
        ]
        return _body(job, choices, usage)

    def _prompt(self, job: Job, index: int) -> str:
        return job.choices[index].prompt.text if self._echo else ""

    def _logprobs(self, job: Job, index: int, tokens: Sequence[TokenLogprob], before: int) -> CompletionLogprobs | None:
        if job.choices[index].params.logprobs is None:
            return None
        return completion_logprobs(tokens, len(self._prompt(job, index)) + before)


def _body(job: Job, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> CompletionBody:
    return CompletionBody(id=job.id, created=job.created, model=job.model, choices=choices, usage=usage)


def _no_usage(job: Job) -> UnsetType | None:
    return None if job.include_usage else UNSET
