"""From words of eight 4-bit codes straight into the order of torch's packed matrices on the CPU, without unpacking a code.

A word holds eight columns of one row. torch's block wants a byte for two rows of one column: row `j` and row `j + width / 2`.
So two words give eight bytes: the even columns are the low halves of their bytes put together, the odd ones the high halves,
and the byte of each column is then split off. It takes a quarter of the time of unpacking all codes and packing them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from loadmaster_plugins.kernels.int4_layout import BlockOrder

if TYPE_CHECKING:
    import torch

BLOCKS: Final = 16
"""Blocks of rows that are rearranged at a time, so that whole pieces of the words' rows are read."""

TILE: Final = 1 << 16
"""Pairs of words that are rearranged at a time: few enough to stay in the second-level cache."""

LOW: Final = 0x0F0F0F0F
"""The low halves of a word's bytes: its even columns."""


def rearrange(words: torch.Tensor, packed: torch.Tensor, order: BlockOrder) -> int:
    """Fill the whole blocks of `packed`, uint8 [rows, in / 2], from `words`, int32 [in / 8, rows]. Return their number of rows.

    The rows after them, and all rows where a block does not have two halves, are left alone.
    """
    if not order.halves:
        return 0
    count = packed.shape[0] // order.block
    rows = count * order.block
    source = words[:, :rows].view(len(words), count, 2, order.block // 2)
    target = packed[:rows].view(count, len(words), 8, order.block // 2)
    for start in range(0, count, BLOCKS):
        _rearrange_blocks(source[:, start : start + BLOCKS], target[start : start + BLOCKS])
    return rows


def _rearrange_blocks(source: torch.Tensor, target: torch.Tensor) -> None:
    """Fill `target`, uint8 [blocks, words, 8, half], from `source`, int32 [words, blocks, 2, half]."""
    import torch

    with torch.inference_mode():
        step = max(1, TILE // max(1, source[0, :, 0].numel()))
        for start in range(0, len(source), step):
            low, high = source[start : start + step].unbind(2)
            even = (high & LOW).bitwise_left_shift_(4).bitwise_or_(low & LOW)
            odd = (low >> 4).bitwise_and_(LOW).bitwise_or_(high & ~LOW)
            columns = target[:, start : start + step].transpose(0, 1).unbind(2)
            for place in range(4):
                # Converting to bytes takes the lowest one of each word.
                columns[2 * place].copy_(even)
                columns[2 * place + 1].copy_(odd)
                even >>= 8
                odd >>= 8
