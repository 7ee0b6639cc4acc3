"""The layout of torch's packed int4 matrices on the CPU: how `_convert_weight_to_int4pack_for_cpu` orders the 4-bit codes.

Rows lie in blocks. A block of `n` rows is [columns, n / 2] bytes, so blocks follow one another without gaps and can be made
one by one. In a whole block byte `j` of a column holds row `j` in its low and row `j + n / 2` in its high half where torch
uses vector instructions; without them, and in a last block that is short, it holds rows `2 j` and `2 j + 1`. How many rows a
block has depends on the vectors' width. Source: `weight_to_int4pack_kernel` in PyTorch's `aten/src/ATen/native/cpu/`, file
`int4mm_kernel.cpp`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import torch


class BlockOrder(NamedTuple):
    """The order on one machine: rows per block, and whether a whole block splits its rows into two halves."""

    block: int
    halves: bool


KNOWN: Final = (BlockOrder(64, True), BlockOrder(32, True), BlockOrder(32, False), BlockOrder(16, False))
"""The orders of torch's builds: AVX-512, AVX2, x86 without them, and vectors of 16 bytes."""


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Return uint8 codes [rows, columns] packed by torch: uint8 [rows, columns / 2]. Rows must be a multiple of 16."""
    import torch

    packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.to(torch.int32), 1)
    return packed


def unpack_into(tile: torch.Tensor, packed: torch.Tensor, order: BlockOrder) -> None:
    """Write the codes, less 8, of the packed rows [rows, columns / 2] into `tile`, a float [columns, rows].

    The rows must begin with a block. Raises nothing: codes are -8 to 7, which every float type holds exactly.
    """
    rows, columns = packed.shape[0], tile.shape[0]
    whole = rows // order.block * order.block
    _unpack_blocks(tile[:, :whole], packed[:whole], columns, order.block, order.halves)
    if whole < rows:
        _unpack_blocks(tile[:, whole:], packed[whole:], columns, rows - whole, False)


def _unpack_blocks(tile: torch.Tensor, packed: torch.Tensor, columns: int, width: int, halves: bool) -> None:
    import torch

    nibbles = packed.reshape(-1, columns, width // 2)
    dest = tile.view(columns, -1, width).transpose(0, 1)
    low, high = (dest[..., : width // 2], dest[..., width // 2 :]) if halves else (dest[..., 0::2], dest[..., 1::2])
    low.copy_((nibbles & 15).view(torch.int8).sub_(8))
    high.copy_((nibbles >> 4).view(torch.int8).sub_(8))


@cache
def machine_order() -> BlockOrder | None:
    """Return the order that reads back what torch packs on this machine, or None when torch's order is none that is known."""
    import torch

    rows, columns = 2 * 64 + 48, 32
    codes = (torch.arange(rows)[:, None] * 7 + torch.arange(columns) * 3 + torch.arange(rows)[:, None] // 16).remainder(16)
    packed = pack(codes)
    tile = torch.empty(columns, rows)
    for order in KNOWN:
        unpack_into(tile, packed, order)
        if torch.equal(tile.T, codes - 8.0):
            return order
    return None
