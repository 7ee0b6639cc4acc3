"""Names of contents: a full block is known by its tokens and all before them, and by whatever else changes keys and values."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final

DIGEST_BYTES: Final = 16


def root(adapter_key: str = "") -> bytes:
    """Return the name before the first block. Contents computed with different adapters never meet."""
    return hashlib.blake2b(adapter_key.encode(), digest_size=DIGEST_BYTES).digest()


def chained(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the name of a block with these tokens after the content that `parent` names."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


class Chain:
    """The names of one sequence's full blocks, extended as tokens come."""

    def __init__(self, adapter_key: str, block_size: int) -> None:
        self._size = block_size
        self._names: list[bytes] = []
        self._root = root(adapter_key)

    def upto(self, tokens: Sequence[int], blocks: int) -> list[bytes]:
        """Return the names of the first `blocks` blocks of `tokens`, all of which must be full."""
        while len(self._names) < blocks:
            begin = len(self._names) * self._size
            parent = self._names[-1] if self._names else self._root
            self._names.append(chained(parent, tokens[begin : begin + self._size]))
        return self._names[:blocks]
