"""Responses of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from loadmaster.serving.http.answers import Answer
from loadmaster.serving.http.jobs import Job
from loadmaster.serving.http.logprobs import ChatLogprobs, chat_logprobs
from loadmaster.serving.http.shapes import Shape
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


class ChatShape(Shape):
    """Makes chat responses; the first chunk of a choice tells the role."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _beginning(self, job: Job, index: int) -> ChunkChoice:
        return ChunkChoice(index=index, delta=ChatPiece(role="assistant", content=""))

    def _piece(self, job: Job, index: int, answer: Answer, delta: Delta) -> ChunkChoice:
        return ChunkChoice(
            index=index,
            delta=ChatPiece(content=delta.text) if delta.text else ChatPiece(),
            logprobs=_logprobs(job, index, delta.logprobs),
            finish_reason=delta.finish_reason,
        )

    def _choice(self, job: Job, index: int, answer: Answer) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=ChatMessage(content=answer.text),
            logprobs=_logprobs(job, index, answer.logprobs),
            finish_reason=answer.finish_reason,
        )


def _logprobs(job: Job, index: int, tokens: Sequence[TokenLogprob]) -> ChatLogprobs | None:
    return None if job.choices[index].params.logprobs is None else chat_logprobs(tokens)
