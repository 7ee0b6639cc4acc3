"""Which adapters the tokens of the running step are computed with."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

MIXED: Final = -1
"""In the place of a number: the step's tokens have different adapters."""


class Segment(NamedTuple):
    """`size` tokens from `begin` on that have one adapter; 0 is the base."""

    adapter: int
    begin: int
    size: int


def segments(runs: Iterable[tuple[int, int]]) -> tuple[Segment, ...]:
    """Return segments for runs of (adapter, tokens) that follow one another; neighbours with one adapter become one."""
    found = []
    begin = 0
    for adapter, group in groupby(runs, key=lambda run: run[0]):
        size = sum(count for _, count in group)
        found.append(Segment(adapter, begin, size))
        begin += size
    return tuple(found)


class Choice:
    """The running step's adapters. `number` is the only one, 0 for the base, or MIXED.

    Of a mixed step `tokens` says which of the packed tokens have which adapter, and `rows` the same of the tokens whose logits
    are wanted: modules before the output head see all tokens, the head sees these.
    """

    def __init__(self) -> None:
        self.number = 0
        self._by_size: dict[int, tuple[Segment, ...]] = {}

    def one(self, number: int) -> None:
        """Use one adapter for all tokens."""
        self.number = number
        self._by_size = {}

    def several(self, tokens: tuple[Segment, ...], rows: tuple[Segment, ...]) -> None:
        """Use several. With as many rows as tokens each token is a row, so both are the same."""
        self.number = MIXED
        self._by_size = {sum(segment.size for segment in each): each for each in (rows, tokens)}

    def of(self, size: int) -> tuple[Segment, ...] | None:
        """Return the segments of a module that is called with `size` tokens, None where these cannot be told apart."""
        return self._by_size.get(size)
