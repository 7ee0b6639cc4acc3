"""Products with a packed int4 matrix on the CPU: torch's own for few rows of bfloat16, tiles of unpacked weights for the rest.

torch's product is fast in bfloat16 only: in float32 and float16 it is not vectorised, and unpacking wins from the first row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from loadmaster_plugins.kernels.int4_layout import BlockOrder, machine_order, unpack_into
from loadmaster_plugins.kernels.tiles import tiles

if TYPE_CHECKING:
    import torch

MANY_ROWS: Final = 144
"""Rows from which unpacking is faster where bfloat16 products are emulated; between 128 and 150 on AVX-512 without them."""

MANY_ROWS_NATIVE: Final = 80
"""The same where the processor multiplies bfloat16 itself; an estimate from the cost of unpacking and of that product."""


def cpu_product(
    packed: torch.Tensor, scales_and_zeros: torch.Tensor, group_size: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the product with `packed`, uint8 [out, in / 2] in torch's order.

    `scales_and_zeros` is [in / group_size, out, 2]; a weight is `(code - 8) * scale + zero`. Its type is that of the product.
    """
    import torch

    order = machine_order()
    native = _multiplies_bfloat16()
    unpack_from = _unpack_from(order, scales_and_zeros.dtype, native)
    tile_dtype = torch.bfloat16 if native and scales_and_zeros.dtype == torch.bfloat16 else torch.float32
    columns = packed.shape[1] * 2

    def product(x: torch.Tensor) -> torch.Tensor:
        rows = math.prod(x.shape[:-1])
        flat = x.reshape(rows, columns).to(scales_and_zeros.dtype)
        if order is None or rows < unpack_from:
            result: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
                flat.contiguous(), packed, group_size, scales_and_zeros
            )
        else:
            result = multiply_unpacked(flat, packed, scales_and_zeros, group_size, order, tile_dtype)
        return result.to(x.dtype).reshape(*x.shape[:-1], packed.shape[0])

    return product


def multiply_unpacked(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    group_size: int,
    order: BlockOrder,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return `x` [rows, in] times the transpose of the packed matrix, [rows, out] of the type of `x`, computed in `dtype`."""
    import torch

    out, columns = packed.shape[0], packed.shape[1] * 2
    ranges = list(tiles(out, columns))
    result = x.new_empty(x.shape[0], out)
    converted = x.to(dtype)
    memory = torch.empty(columns * ranges[0][1], dtype=dtype)
    for start, stop in ranges:
        tile = memory[: columns * (stop - start)].view(columns, stop - start)
        unpack_into(tile, packed[start:stop], order)
        grouped = tile.view(-1, group_size, stop - start)
        scales, zeros = scales_and_zeros[:, None, start:stop].to(dtype).unbind(-1)
        torch.addcmul(zeros, grouped, scales, out=grouped)
        result[:, start:stop] = converted @ tile
    return result


def _unpack_from(order: BlockOrder | None, dtype: torch.dtype, native: bool) -> int:
    """Return the number of rows from which unpacking is faster than torch's product."""
    import torch

    if dtype != torch.bfloat16 or order is None or not order.halves:
        return 0
    return MANY_ROWS_NATIVE if native else MANY_ROWS


def _multiplies_bfloat16() -> bool:
    """Whether the processor has instructions that multiply bfloat16; without them torch's bfloat16 product is emulated."""
    import torch

    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(known is not None and known())
