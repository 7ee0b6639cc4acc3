"""One request as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Literal

import msgspec

from loadmaster_engine.serve.messages import RowSampling
from loadmaster_engine.serve.prefix import Chain

Ending = Literal["stop", "length", "error"]
"""`error`: there was no token to draw."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of the scheduler: how to draw, when to end. `sampling.index` and its histories are filled in.

    `adapter` is the number that the workers know the request's adapter by, 0 for the base. `adapter_key` stands for what the
    adapter is, whatever its number, empty for the base: requests of one key share beginnings, others never do.
    """

    sampling: RowSampling
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    adapter: int = 0
    adapter_key: str = ""

    @property
    def penalises(self) -> bool:
        """Whether drawing needs to know the tokens so far."""
        return bool(self.sampling.presence or self.sampling.frequency or self.sampling.repetition != 1.0)


class Sequence:
    """The tokens of a request, how many of them have keys and values, and the blocks that hold these."""

    def __init__(self, number: int, prompt: Tokens[int], wish: Wish, block_size: int) -> None:
        self.number = number
        self.wish = wish
        self.prompt = tuple(prompt)
        self.tokens = list(prompt)
        self.computed = 0
        self.blocks: list[int] = []
        self.cached = 0
        self.started = False
        self.chain = Chain(wish.adapter_key, block_size)
        self.published = 0

    @property
    def pending(self) -> int:
        """Tokens without keys and values: at least one, the latest."""
        return len(self.tokens) - self.computed

    @property
    def answered(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - len(self.prompt)

    def sampling(self) -> RowSampling:
        """Return how the next token is drawn."""
        plain = self.wish.sampling
        if not self.wish.penalises:
            return msgspec.structs.replace(plain, index=self.answered) if self.answered else plain
        answer = tuple(self.tokens[len(self.prompt) :])
        return msgspec.structs.replace(plain, index=len(answer), prompt=self.prompt, answer=answer)

    def ending(self) -> Ending | None:
        """Return why the answer ends with its latest token, or None."""
        if self.tokens[-1] in self.wish.stop_ids:
            return "stop"
        return "length" if self.answered >= self.wish.max_tokens else None
