"""Products with a packed int4 matrix on CUDA: torch's tensor-core kernel, which computes in bfloat16.

Source of the layout: `_convert_weight_to_int4pack_cuda` in PyTorch's `aten/src/ATen/native/cuda/int4mm.cu`. It takes two codes
per byte, the even column in the high half, and returns int32 [out / 8, in / (16 * inner), 32, inner / 2], blocks of 8 rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def inner_tiles(columns: int) -> int:
    """Return how many tiles of 16 columns torch packs together: as many of 8, 4 or 2 as divide `columns`, a multiple of 32."""
    return next(inner for inner in (8, 4, 2) if columns % (16 * inner) == 0)


def pack_cuda(codes: torch.Tensor) -> torch.Tensor:
    """Return uint8 codes [rows, columns] packed by torch, as bytes [rows, columns / 2]. Rows must be a multiple of 8."""
    import torch

    rows, columns = codes.shape
    paired = (codes[:, 0::2] << 4) | codes[:, 1::2]
    packed: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack(paired.contiguous(), inner_tiles(columns))
    return packed.view(torch.uint8).reshape(rows, columns // 2)


def cuda_product(
    packed: torch.Tensor, scales_and_zeros: torch.Tensor, group_size: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the product with `packed`, uint8 [out, in / 2] as `pack_cuda` made it; the rest is as in `cpu_product`."""
    import torch

    rows, columns = packed.shape[0], packed.shape[1] * 2
    inner = inner_tiles(columns)
    words = packed.view(-1).view(torch.int32).view(rows // 8, columns // (16 * inner), 32, inner // 2)

    def product(x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(math.prod(x.shape[:-1]), columns).to(torch.bfloat16).contiguous()
        result: torch.Tensor = torch.ops.aten._weight_int4pack_mm(flat, words, group_size, scales_and_zeros)
        return result.to(x.dtype).reshape(*x.shape[:-1], rows)

    return product
