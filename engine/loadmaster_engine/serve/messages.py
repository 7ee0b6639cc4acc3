"""The calls that serving makes to the workers, as data."""

from __future__ import annotations

from typing import Final

import msgspec

from loadmaster_hookspecs.kv import KvLayout

NO_TOKEN: Final = -1
"""In the place of a token that cannot be drawn: the largest of its row's logits is no finite number."""


class RowSampling(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """How one token is drawn: the request's values, and `index`, the number of the token in its answer.

    `prompt` and `answer` are given only where penalties need them. `logprobs` is the number of likeliest tokens to report
    beside the drawn one, -1 for no report.
    """

    index: int
    seed: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    logprobs: int = -1
    prompt: tuple[int, ...] = ()
    answer: tuple[int, ...] = ()


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A sequence's part of a step: new `tokens` from position `start` on, and the blocks of all its positions so far.

    `sampling` is None where the next token is not wanted, as after a part of a prompt. `adapter` is the number of the adapter
    that the tokens are computed with, 0 for the base.
    """

    tokens: tuple[int, ...]
    start: int
    table: tuple[int, ...]
    sampling: RowSampling | None = None
    adapter: int = 0


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Op `probe`: run a step of so many tokens and say what attention keeps. Answered with Probed by every rank.

    With `arrange` matrices are kept a second time, arranged for the processor, where that makes products faster.
    """

    tokens: int
    arrange: bool = False


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank keeps per token, and the memory in bytes that the step took for a while (0 where it is not known).

    `free` is the memory in bytes that the rank's device has left, 0 on the CPU, where the host looks itself. `arranged` is the
    memory in bytes of the matrices that are kept a second time.
    """

    layout: KvLayout
    activation: int
    free: int = 0
    arranged: int = 0


class ReserveKv(msgspec.Struct, frozen=True, kw_only=True):
    """Op `reserve_kv`: reserve `blocks` blocks of `block_size` tokens. Answered with nothing."""

    blocks: int
    block_size: int


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to op `held`: the bytes of keys and values that take memory by now, of those that are reserved."""

    nbytes: int


class Sleep(msgspec.Struct, frozen=True, kw_only=True):
    """Op `sleep`: give back the memory of keys and values, and with `weights` that of the model. Answered with nothing."""

    weights: bool


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Op `step`: copy blocks (`source`, `target`), then run the rows. Rank 0 answers with Drawn."""

    rows: tuple[Row, ...]
    copies: tuple[tuple[int, int], ...] = ()


class DrawnToken(msgspec.Struct, frozen=True, array_like=True):
    """A token; its natural logarithm of probability and the likeliest tokens with theirs, where they were asked for.

    `id` is NO_TOKEN where there was nothing to draw from.
    """

    id: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of a step, in the order of its rows that wanted one."""

    tokens: tuple[DrawnToken, ...]
