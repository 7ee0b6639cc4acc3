"""The request bodies of the API as typed records. What is not in them is refused by name (`fields`).

Source: https://platform.openai.com/docs/api-reference; `top_k`, `min_p`, `repetition_penalty`, `stop_token_ids` and
`ignore_eos` are extensions with the names that vLLM gave them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Likeliest = Annotated[int, Meta(ge=0, le=20)]
"""A number of alternatives to every token."""
NAME_PATTERN = r"\A[^\s\x00-\x1f\x7f]+\Z"
AdapterName = Annotated[str, Meta(min_length=1, max_length=256, pattern=NAME_PATTERN)]
"""A name without spaces and control characters."""


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`include_usage` asks for a last chunk with token counts; `include_obfuscation` is accepted and adds nothing."""

    include_usage: bool = False
    include_obfuscation: bool = False


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both kinds of requests have. None leaves a value to the server's defaults."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Count = 1
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool = False
    seed: int | None = None


class CompletionRequest(GenerationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body of `/v1/completions`. `prompt` is a text, texts, token ids, or lists of token ids."""

    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool = False
    logprobs: Likeliest | None = None


class LoadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body of `/v1/load_lora_adapter`: the name that requests will use, and the adapter's folder on the server's machine.

    A `pinned` adapter does not make room for others.
    """

    lora_name: AdapterName
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    pinned: bool = False


class UnloadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body of `/v1/unload_lora_adapter`."""

    lora_name: AdapterName


class TextPart(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a message; text is the only type there is."""

    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart]
    name: str | None = None


class ChatRequest(GenerationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body of `/v1/chat/completions`. `max_completion_tokens` is the newer name of `max_tokens`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Likeliest | None = None
