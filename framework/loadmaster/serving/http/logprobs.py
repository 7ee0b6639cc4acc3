"""Log-probabilities in the two shapes of the API: lists side by side for completions, records for chats."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from loadmaster.serving.types import TokenLogprob

LOWEST = -9999.0
"""What the OpenAI API reports for a token that cannot be: JSON has no infinity."""


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Lists with one item per token; `text_offset` counts characters from the beginning of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was likely at a place. `bytes` are its UTF-8; None for a token that is only a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of an answer, with the likeliest ones at its place, best first."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of an answer, or of a piece of it."""

    content: list[ChatToken]
    refusal: None = None


def completion_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> CompletionLogprobs:
    """Return the lists for `tokens`, whose first one begins at character `offset`.

    The alternatives include the token itself. Of tokens with the same text the likeliest counts.
    """
    lengths = (len(token.text) for token in tokens[:-1])
    return CompletionLogprobs(
        tokens=[token.text for token in tokens],
        token_logprobs=[_finite(token.logprob) for token in tokens],
        top_logprobs=[_by_text(token) for token in tokens],
        text_offset=list(accumulate(lengths, initial=offset)) if tokens else [],
    )


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Return the records for `tokens`."""
    return ChatLogprobs(
        content=[
            ChatToken(
                token=token.text,
                logprob=_finite(token.logprob),
                bytes=_utf8(token.text),
                top_logprobs=[
                    Alternative(token=text, logprob=_finite(logprob), bytes=_utf8(text)) for _, text, logprob in token.top
                ],
            )
            for token in tokens
        ]
    )


def _by_text(token: TokenLogprob) -> dict[str, float]:
    found: dict[str, float] = {}
    for text, logprob in (*((text, logprob) for _, text, logprob in token.top), (token.text, token.logprob)):
        found[text] = max(found.get(text, LOWEST), _finite(logprob))
    return found


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def _utf8(text: str) -> list[int] | None:
    return None if "\ufffd" in text else list(text.encode("utf-8"))
