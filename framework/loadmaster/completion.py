"""Completing prompts: token by token over an executor, in the host process and without torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from loadmaster.sampling import Defaults, Request, resolve
from loadmaster_engine.run.messages import Prompts, Tokens, decode, encode
from loadmaster_engine.serve.messages import NO_TOKEN
from loadmaster_hookspecs.errors import IntegrityError, UsageError, printable
from loadmaster_hookspecs.models import ModelOutline, Tokenizer

FinishReason = Literal["stop", "length"]

Prompt = str | Sequence[int]
"""A text, or token ids."""

Step = Callable[[str, bytes], bytes]
"""Sends one call to all ranks and returns the answer of rank 0."""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one prompt. `token_ids` leaves out the prompt and the stop token that ended it."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason


def as_token_ids(prompt: Iterable[object]) -> list[int]:
    """Return a prompt as plain integers; arrays and their elements count as such. Raises UsageError for anything else."""
    try:
        return [operator.index(token) for token in prompt]  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(
            "LM-USAGE-PROMPT",
            "a prompt is neither text nor a sequence of token ids",
            why=str(error),
            hints=["a batch is a list of prompts: wrap a single sequence of ids in a list"],
        ) from None


def check_text(prompt: str) -> None:
    """Raise UsageError for a text with undecodable bytes, which Python reads as lone surrogates."""
    if printable(prompt) != prompt:
        raise UsageError("LM-USAGE-PROMPT", "a prompt is not valid text", hints=["give prompts in UTF-8"])


def encode_prompt(prompt: Prompt, tokenizer: Callable[[], Tokenizer], *, chat: bool) -> list[int]:
    """Return the token ids of a prompt; with `chat` a text is a user's message. Raises UsageError for what is neither."""
    if not isinstance(prompt, str):
        if chat:
            raise UsageError("LM-USAGE-CHAT", "chat needs texts, not token ids")
        return as_token_ids(prompt)
    check_text(prompt)
    if chat:
        messages: list[Mapping[str, str]] = [{"role": "user", "content": prompt}]
        return tokenizer().encode(tokenizer().chat(messages), special=False)
    return tokenizer().encode(prompt)


def check_prompts(prompts: Sequence[Sequence[int]], outline: ModelOutline) -> None:
    """Raise UsageError for a prompt that is empty, too long, or has ids outside the vocabulary."""
    for number, prompt in enumerate(prompts):
        where: dict[str, str | int] = {"prompt": number}
        if not prompt:
            raise UsageError("LM-USAGE-PROMPT", "a prompt has no tokens", where=where)
        if outline.max_positions and len(prompt) > outline.max_positions:
            why = f"{len(prompt)} tokens, the model has {outline.max_positions} positions"
            raise UsageError("LM-USAGE-PROMPT", "a prompt is longer than the model allows", where=where, why=why)
        if not all(0 <= token < outline.vocab_size for token in prompt):
            why = f"ids reach from {min(prompt)} to {max(prompt)}, the vocabulary has {outline.vocab_size}"
            raise UsageError("LM-USAGE-PROMPT", "a token id is not in the vocabulary", where=where, why=why)


def complete(
    prompts: Sequence[Sequence[int]],
    request: Request,
    defaults: Defaults,
    outline: ModelOutline,
    step: Step,
    adapter: int = 0,
) -> list[tuple[tuple[int, ...], FinishReason]]:
    """Return tokens and finish reason for every prompt, run as one batch until the last one has ended.

    `adapter` is the number of the one to use, 0 for the model as it was loaded. Raises IntegrityError LM-LOGITS-NAN, naming the
    prompt, when there are no numbers to draw a token of its answer from.
    """
    rows = tuple(tuple(prompt) for prompt in prompts)
    sampling = tuple(resolve(request, defaults, number) for number in range(len(rows)))
    room = [_room(len(row), request, outline) for row in rows]
    answers: list[list[int]] = [[] for _ in rows]
    reasons: list[FinishReason | None] = [None for _ in rows]
    drawn = decode(step("begin", encode(Prompts(rows=rows, sampling=sampling, adapter=adapter))), Tokens).ids
    while True:
        for row, token in enumerate(drawn):
            if reasons[row] is None:
                if token == NO_TOKEN:
                    step("end", b"")
                    raise undrawable(prompt=row, token=len(answers[row]))
                reasons[row] = _take(token, answers[row], room[row], defaults)
        if all(reasons):
            break
        fed = tuple(max(token, 0) for token in drawn)  # rows that have ended are computed along, whatever they draw
        drawn = decode(step("append", encode(Tokens(ids=fed))), Tokens).ids
    step("end", b"")
    return [(tuple(answer), reason or "length") for answer, reason in zip(answers, reasons, strict=True)]


def undrawable(**where: str | int) -> IntegrityError:
    """Return the error for an answer that cannot go on, because its logits are no numbers. Empty places are left out."""
    return IntegrityError(
        "LM-LOGITS-NAN",
        "the model computed no numbers to draw a token from",
        where={name: value for name, value in where.items() if value != ""},
        why="the largest of the logits is NaN or infinite",
        hints=[
            "float16 may be too narrow: load with bfloat16 or float32",
            "if it happens with an adapter alone, the adapter's values are too large: use another checkpoint of it",
        ],
    )


def to_completion(ids: tuple[int, ...], reason: FinishReason, tokenizer: Tokenizer | None) -> Completion:
    """Return the completion with its text, which is empty for a model without a tokenizer."""
    text = tokenizer.decode(ids) if tokenizer else ""
    return Completion(text=text, token_ids=ids, finish_reason=reason)


def _room(prompt: int, request: Request, outline: ModelOutline) -> int:
    """Return how many tokens an answer may have: a model's last position can still predict one."""
    if not outline.max_positions:
        return request.max_tokens
    return min(request.max_tokens, outline.max_positions - prompt + 1)


def _take(token: int, answer: list[int], room: int, defaults: Defaults) -> FinishReason | None:
    if token in defaults.stop:
        return "stop"
    answer.append(token)
    return "length" if len(answer) >= room else None
