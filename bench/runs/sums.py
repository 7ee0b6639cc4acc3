"""Sums over two-byte tensors that do not depend on how a tensor is cut: the sums of its parts add up to the sum of the whole.

Every element is weighed by its row and its column in the whole tensor, so values in wrong places change the sum. Arithmetic is
exact: a row's dot product stays below 2**53 in float64, everything after it is modulo 2**64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Words = npt.NDArray[np.uint16]
Sums = dict[str, dict[str, int]]
"""`whole` has the sums of tensors that a process holds entirely, `parts` those of tensors it holds a part of."""

MODULUS = 1 << 64
_BLOCK_ROWS = 512
_COLUMN_BITS = 20


def words_sum(words: Words, row: int = 0, column: int = 0) -> int:
    """Return the sum of a two-dimensional part whose first element is at (`row`, `column`) of the whole tensor."""
    weights = (_mixed(column, words.shape[1]) >> np.uint64(64 - _COLUMN_BITS)).astype(np.float64)
    total = 0
    for start in range(0, words.shape[0], _BLOCK_ROWS):
        dots = (words[start : start + _BLOCK_ROWS].astype(np.float64) @ weights).astype(np.uint64)
        total += int((dots * (_mixed(row + start + (1 << 32), len(dots)) | np.uint64(1))).sum(dtype=np.uint64))
    return total % MODULUS


def tensor_sum(tensor: torch.Tensor, start: tuple[int, ...] = ()) -> int:
    """Return the sum of a tensor of one or two dimensions; `start` is where it begins in the whole tensor."""
    import torch

    if tensor.element_size() != 2 or tensor.ndim > 2:
        raise ValueError(f"cannot sum a tensor of type {tensor.dtype} with {tensor.ndim} dimensions")
    words: Any = tensor.detach().view(torch.int16).numpy().view(np.uint16)
    start = start or (0,) * tensor.ndim
    return words_sum(words, *start) if tensor.ndim == 2 else words_sum(words[None, :], 0, *start)


def whole_sums(tensors: dict[str, torch.Tensor]) -> Sums:
    """Return the sums of tensors that are all held entirely."""
    return {"whole": {name: tensor_sum(tensor) for name, tensor in tensors.items()}, "parts": {}}


def merge_sums(ranks: Sequence[Sums]) -> Sums:
    """Return the sums over ranks: parts add up, tensors that several ranks hold must agree. Raises ValueError otherwise."""
    whole: dict[str, int] = {}
    parts: dict[str, int] = {}
    for rank in ranks:
        for name, value in rank["whole"].items():
            if whole.setdefault(name, value) != value:
                raise ValueError(f"ranks hold different values of {name}")
        for name, value in rank["parts"].items():
            parts[name] = (parts.get(name, 0) + value) % MODULUS
    return {"whole": whole, "parts": parts}


def _mixed(first: int, count: int) -> npt.NDArray[np.uint64]:
    """Return well-mixed 64-bit numbers for `count` indices from `first` on."""
    state = np.arange(first + 1, first + 1 + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
