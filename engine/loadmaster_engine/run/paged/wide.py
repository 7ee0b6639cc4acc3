"""Products of narrow floating-point matrices on processors that cannot multiply these, widened tile by tile.

Without instructions for bfloat16, torch multiplies a batch of rows by a bfloat16 matrix several times slower than by a float32
one. Here pieces of the matrix that fit into a processor's cache become float32 just before they are used, and the result is
rounded once, so it is at least as exact. One row is bound by reading the matrix, and stays as it is.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

NATIVE: Final = {
    "bfloat16": frozenset({"avx512_bf16", "amx_bf16", "bf16"}),
    "float16": frozenset({"avx512_fp16", "amx_fp16", "fphp"}),
}
"""The processor features, as the kernel names them, with which torch multiplies an element type directly."""

WORTHWHILE: Final = 8
"""Rows from which on widening pays (measured: level at 4 to 8, twice as fast at 32, four times at 128)."""

TILE_BYTES: Final = 1 << 20
"""Bytes of float32 in a piece."""


def widen(module: torch.nn.Module, features: frozenset[str] | None = None) -> int:
    """Have the linear modules of `module` widen narrow weights that this processor cannot multiply; return how many do.

    `features` are the processor's, by default this machine's. Safe to call again.
    """
    import torch

    present = processor_features() if features is None else features
    slow = {getattr(torch, name) for name, wanted in NATIVE.items() if not wanted & present}
    chosen = [part for part in module.modules() if type(part) is torch.nn.Linear and part.weight.dtype in slow]
    for linear in chosen:
        linear.forward = partial(product, linear)  # type: ignore[method-assign]
    return len(chosen)


def product(linear: torch.nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """Return what the module's own `forward` returns for `rows` [..., in]."""
    import torch

    weight, bias = linear.weight, linear.bias
    out, width = weight.shape
    if rows.numel() < WORTHWHILE * width:
        return torch.nn.functional.linear(rows, weight, bias)
    wide = rows.float()
    result = rows.new_empty(*rows.shape[:-1], out)
    tile = max(1, TILE_BYTES // (4 * width))
    for begin in range(0, out, tile):
        part = slice(begin, begin + tile)
        added = None if bias is None else bias[part].float()
        result[..., part] = torch.nn.functional.linear(wide, weight[part].float(), added)
    return result


def processor_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Return the features of the first processor, empty where the system does not say."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(named, []))
