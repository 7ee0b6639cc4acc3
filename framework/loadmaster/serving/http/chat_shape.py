"""Responses of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from loadmaster.serving.http.answers import Answer, Usage
from loadmaster.serving.http.jobs import Job
from loadmaster.serving.http.logprobs import ChatLogprobs, chat_logprobs
from loadmaster.serving.types import Delta, FinishReason, TokenLogprob


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's turn."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatBody(msgspec.Struct, frozen=True, kw_only=True):
    """A whole response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatPiece(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of a turn. The role comes once, in the first chunk of a choice."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one answer."""

    index: int
    delta: ChatPiece
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class ChatShape:
    """Makes chat responses."""

    def opening(self, job: Job, index: int) -> ChatChunk:
        """Return the chunk that tells the role."""
        return _chunk(job, ChunkChoice(index=index, delta=ChatPiece(role="assistant", content="")))

    def chunk(self, job: Job, index: int, answer: Answer, delta: Delta) -> ChatChunk:
        """Return the chunk for what is new of a choice."""
        piece = ChatPiece(content=delta.text) if delta.text else ChatPiece()
        logprobs = _logprobs(job, index, delta.logprobs)
        return _chunk(job, ChunkChoice(index=index, delta=piece, logprobs=logprobs, finish_reason=delta.finish_reason))

    def closing(self, job: Job, usage: Usage) -> ChatChunk:
        """Return the chunk that tells the usage."""
        return ChatChunk(id=job.id, created=job.created, model=job.model, choices=[], usage=usage)

    def whole(self, job: Job, answers: Sequence[Answer], usage: Usage) -> ChatBody:
        """Return the response that is not a stream."""
        choices = [
            ChatChoice(
                index=index,
                message=ChatMessage(content=answer.text),
                logprobs=_logprobs(job, index, answer.logprobs),
                finish_reason=answer.finish_reason,
            )
            for index, answer in enumerate(answers)
        ]
        return ChatBody(id=job.id, created=job.created, model=job.model, choices=choices, usage=usage)


def _chunk(job: Job, choice: ChunkChoice) -> ChatChunk:
    usage = None if job.include_usage else UNSET
    return ChatChunk(id=job.id, created=job.created, model=job.model, choices=[choice], usage=usage)


def _logprobs(job: Job, index: int, tokens: Sequence[TokenLogprob]) -> ChatLogprobs | None:
    return None if job.choices[index].params.logprobs is None else chat_logprobs(tokens)
