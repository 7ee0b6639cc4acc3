"""What the choices of a job have produced, and the tokens they are accounted with."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadmaster.serving.http.jobs import Job
from loadmaster.serving.types import Delta, FinishReason, TokenLogprob


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the prompts that came out of the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request: a prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Answer:
    """One choice so far. Deltas are added as they come."""

    def __init__(self) -> None:
        self.tokens = 0
        self.cached_tokens = 0
        self.characters = 0
        self.finish_reason: FinishReason | None = None
        self.logprobs: list[TokenLogprob] = []
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    def add(self, delta: Delta) -> None:
        """Take what is new."""
        self.tokens += len(delta.ids)
        self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
        self.characters += sum(len(token.text) for token in delta.logprobs)
        self.finish_reason = delta.finish_reason
        self.logprobs += delta.logprobs
        self._pieces.append(delta.text)


def count_usage(job: Job, answers: Sequence[Answer]) -> Usage:
    """Return the token counts of a job. Of a prompt's choices the first tells what was cached: it ran without the others."""
    prompt = sum(len(prompt.ids) for prompt in job.prompts)
    completion = sum(answer.tokens for answer in answers)
    first = answers[:: len(job.choices) // len(job.prompts)]
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(answer.cached_tokens for answer in first)),
    )
