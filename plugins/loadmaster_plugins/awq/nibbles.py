"""The order of 4-bit values in autoawq's words: 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

PLACE: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which nibble of a word holds its first value, its second, and so on. Source: `AWQ_REVERSE_ORDER` of autoawq 0.2.9."""


def unpack_rows(words: torch.Tensor) -> torch.Tensor:
    """Return the values in the words of every column: int32 [words, columns] to uint8 [words * 8, columns]."""
    import torch

    values = torch.empty((words.shape[0], len(PLACE), words.shape[1]), dtype=torch.uint8, device=words.device)
    words = words.contiguous()
    for index, place in enumerate(PLACE):
        values[:, index].copy_(words >> 4 * place)
    return values.bitwise_and_(15).flatten(0, 1)
