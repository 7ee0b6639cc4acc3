"""Responses of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadmaster.serving.http.answers import Answer
from loadmaster.serving.http.jobs import Job
from loadmaster.serving.http.logprobs import CompletionLogprobs, completion_logprobs
from loadmaster.serving.http.shapes import Shape
from loadmaster.serving.types import Delta, FinishReason, TokenLogprob


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None


class CompletionShape(Shape):
    """Makes completion responses; with `echo` every text begins with its prompt. Chunks have the form of whole responses."""

    whole_object = chunk_object = "text_completion"

    def __init__(self, *, echo: bool) -> None:
        self._echo = echo

    def _beginning(self, job: Job, index: int) -> CompletionChoice | None:
        return CompletionChoice(index=index, text=self._prompt(job, index)) if self._echo else None

    def _piece(self, job: Job, index: int, answer: Answer, delta: Delta) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text=delta.text,
            logprobs=self._logprobs(job, index, delta.logprobs, answer.characters),
            finish_reason=delta.finish_reason,
        )

    def _choice(self, job: Job, index: int, answer: Answer) -> CompletionChoice:
        return CompletionChoice(
            index=index,
            text=self._prompt(job, index) + answer.text,
            logprobs=self._logprobs(job, index, answer.logprobs, 0),
            finish_reason=answer.finish_reason,
        )

    def _prompt(self, job: Job, index: int) -> str:
        return job.choices[index].prompt.text if self._echo else ""

    def _logprobs(self, job: Job, index: int, tokens: Sequence[TokenLogprob], before: int) -> CompletionLogprobs | None:
        if job.choices[index].params.logprobs is None:
            return None
        return completion_logprobs(tokens, len(self._prompt(job, index)) + before)
