"""What a server and an engine say to each other: requests, what comes back for them, and how the engine is doing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol

import msgspec

from loadmaster.adapters.info import AdapterInfo as AdapterInfo
from loadmaster_hookspecs.models import Tokenizer

FinishReason = Literal["stop", "length", "cancelled", "error"]
"""`stop`: an end token or a stop string; `length`: `max_tokens` or the longest context; `error`: see the delta's `error`."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the tokens of one request are drawn. Temperature 0 is greedy.

    `top_k` 0 and `top_p` 1 leave all tokens in; `min_p` drops tokens less likely than that share of the likeliest one's
    probability. Penalties are those of the OpenAI API (`presence`, `frequency`, over generated tokens) and of transformers
    (`repetition`, over prompt and generated tokens). `logprobs` asks for that many of the likeliest tokens at every position
    beside the chosen one (None: not even that one). `stop` strings end the text before them, `stop_ids` end it too. The same
    `seed` gives the same tokens whatever else is in the batch.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token, its text and its natural logarithm of probability, with the likeliest alternatives, best first."""

    id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...] = ()


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one request: ids and the text they add (it may lag behind while a character is incomplete).

    The last delta of a request has a `finish_reason`. `cached_tokens` of the prompt came out of the prefix cache.
    """

    ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""


class AdapterStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one adapter name since the engine started, or counts it; the empty name is the base."""

    name: str
    requests: int
    prompt_tokens: int
    cached_tokens: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine at one moment, and its counters since it started. Seconds are of wall time.

    `first_token_seconds` are the times to first token of requests finished since the last call of `stats`.
    """

    stage: str
    alive: bool
    last_step_age: float
    running: int
    waiting: int
    requests_done: int
    requests_failed: int
    requests_cancelled: int
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    preemptions: int
    kv_blocks_used: int
    kv_blocks_total: int
    first_token_seconds: tuple[float, ...] = ()
    adapters: tuple[AdapterStats, ...] = ()


class ServingAdapters(Protocol):
    """The adapters of a running engine. Calls may overlap; requests go on meanwhile."""

    def list(self) -> tuple[AdapterInfo, ...]:
        """Return the adapters that requests can name, in the order in which they were loaded."""
        ...

    async def load(self, name: str, path: str, *, pinned: bool = False) -> AdapterInfo:
        """Load an adapter and let requests name it from now on.

        The same content under the same name is there already, and nothing happens. Other content takes the place of what had
        the name: requests that run keep what they began with. Raises what makes the adapter impossible (UsageError, PlanError,
        IntegrityError, ResourceError), and changes nothing then.
        """
        ...

    async def unload(self, name: str) -> int:
        """Let no more requests name an adapter, wait for those that use it, and return the bytes that were given back.

        Raises UsageError LM-USAGE-ADAPTER for an unknown name.
        """
        ...

    def pin(self, name: str, pinned: bool = True) -> None:
        """Say that an adapter must not make room for others, or that it may."""
        ...


class ServingEngine(Protocol):
    """What the server needs of an engine. All methods are called on one event loop."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        ...

    @property
    def max_model_len(self) -> int:
        """The longest context, prompt and generated tokens together."""
        ...

    @property
    def adapters(self) -> ServingAdapters:
        """The adapters that requests can name."""
        ...

    def generate(self, prompt: Sequence[int], params: SamplingParams, *, adapter: str = "") -> AsyncIterator[Delta]:
        """Queue a request and yield what comes of it. Closing the iterator cancels the request.

        Raises UsageError before anything is queued for a prompt that is empty or too long, and for absurd parameters.
        """
        ...

    def stats(self) -> EngineStats:
        """Return how the engine is doing. Never waits."""
        ...

    async def drain(self, timeout: float) -> bool:
        """Accept nothing new, wait for what runs, at most `timeout` seconds; return whether everything ended by itself."""
        ...

    async def close(self) -> None:
        """Cancel what runs and stop the workers."""
        ...
