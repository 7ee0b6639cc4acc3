"""Unpacking of small integers from little-endian streams of bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

STREAM: Final[dict[int, tuple[int, int]]] = {2: (16, 1), 3: (32, 3), 4: (8, 1), 8: (4, 1)}
"""Per number of bits: how many values fill how many 32-bit words exactly."""


def as_bytes(words: torch.Tensor) -> torch.Tensor:
    """Return the bytes of every row: [rows, words] to uint8 [rows, bytes], a copy.

    `contiguous` would not do: it keeps any stride of a dimension with one element, and `view` refuses that.
    """
    import torch

    return words.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def turned(tile: torch.Tensor) -> torch.Tensor:
    """Return a part of a matrix transposed, after copying it: torch transposes whole matrices much faster than slices."""
    return tile.contiguous().t()


def unpack_stream(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the values in the words of every row: int32 [rows, words] to uint8 [rows, words * 32 / bits].

    The lowest bits come first, and a value may go on in the next word, as 3-bit ones do. Source: the packing loops of
    auto-gptq 0.7.1, `QuantLinear.pack`.
    """
    import torch

    data = as_bytes(words)
    if bits == 8:
        return data
    if bits == 3:
        triple = data.view(data.shape[0], data.shape[1] // 3, 3).to(torch.int32)
        joined = triple[..., 0] | triple[..., 1] << 8 | triple[..., 2] << 16
        shifts = torch.arange(0, 24, 3, dtype=torch.int32, device=data.device)
        return ((joined.unsqueeze(-1) >> shifts) & 7).to(torch.uint8).flatten(1)
    # A byte's values are spread over as many bytes by shifts of the byte as a wider integer.
    if bits == 4:
        wide = data.to(torch.int16)
        return (wide << 4).bitwise_or_(wide).bitwise_and_(0x0F0F).view(torch.uint8)
    wide = data.to(torch.int32)
    return (wide << 6 | wide << 12 | wide << 18).bitwise_or_(wide).bitwise_and_(0x03030303).view(torch.uint8)
