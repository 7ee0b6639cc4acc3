"""From prompts and conversations to token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from loadmaster.serving.http.errors import ApiError, bad_request
from loadmaster.serving.http.requests import CompletionRequest, Message
from loadmaster_hookspecs.errors import UsageError
from loadmaster_hookspecs.models import Tokenizer

THREAD_FROM_CHARACTERS: Final = 4096
"""Texts from this length on are encoded on a thread, so that other requests' tokens do not wait for them."""


class Prompt(NamedTuple):
    """Token ids, and the text they stand for; it is filled in only where it will be echoed."""

    ids: tuple[int, ...]
    text: str = ""


async def completion_prompts(request: CompletionRequest, tokenizer: Tokenizer) -> list[Prompt]:
    """Return the prompts of a request in their order. Raises ApiError 400 for an empty or mixed list."""
    return [await _prompt(given, tokenizer, echo=request.echo) for given in _separate(request.prompt)]


async def chat_prompt(messages: Sequence[Message], tokenizer: Tokenizer) -> Prompt:
    """Return the prompt for a conversation, through the model's chat template.

    The role `developer` becomes `system`, which is what templates know. Raises ApiError 400 when the template refuses it.
    """
    try:
        text = tokenizer.chat([_turn(message) for message in messages])
    except UsageError as error:
        raise bad_request(f"{error.report.summary}: {error.report.why}".rstrip(": "), "messages", error.code) from None
    return Prompt(tuple(await _encode(text, tokenizer, special=False)))


def _separate(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """Return the prompts that one field holds."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    if ids and len(ids) == len(prompt):
        return [ids]
    several = [item for item in prompt if not isinstance(item, int)]
    if not prompt or ids or len({type(item) for item in several}) > 1:
        raise _unclear()
    return several


async def _prompt(given: str | list[int], tokenizer: Tokenizer, *, echo: bool) -> Prompt:
    if isinstance(given, str):
        return Prompt(tuple(await _encode(given, tokenizer, special=True)), given)
    return Prompt(tuple(given), tokenizer.decode(given) if echo else "")


async def _encode(text: str, tokenizer: Tokenizer, *, special: bool) -> list[int]:
    if len(text) < THREAD_FROM_CHARACTERS:
        return tokenizer.encode(text, special=special)
    return await asyncio.to_thread(tokenizer.encode, text, special=special)


def _turn(message: Message) -> dict[str, str]:
    content = message.content if isinstance(message.content, str) else "".join(part.text for part in message.content)
    turn = {"role": "system" if message.role == "developer" else message.role, "content": content}
    return turn | {"name": message.name} if message.name else turn


def _unclear() -> ApiError:
    message = "'prompt' must be a text, a list of texts, a list of token ids, or a list of lists of token ids"
    return bad_request(message, "prompt", "invalid_type")
