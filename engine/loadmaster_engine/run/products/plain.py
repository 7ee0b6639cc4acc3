"""Products of narrow floating-point matrices that are kept as they are.

Without instructions for bfloat16, torch multiplies a batch of rows by a bfloat16 matrix several times slower than by a float32
one. Here pieces of the matrix that fit into a processor's cache become float32 just before they are used, and the result is
rounded once, so it is at least as exact. One row is bound by reading the matrix, and stays as it is.

With such instructions torch's own product is taken, for few different numbers of rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from loadmaster_engine.run.products.processor import NATIVE, multiplies
from loadmaster_engine.run.products.row_counts import padded
from loadmaster_hookspecs.dtypes import BY_TORCH_NAME

if TYPE_CHECKING:
    import torch

WORTHWHILE: Final = 8
"""Rows from which on widening pays (measured: level at 4 to 8, twice as fast at 32, four times at 128)."""

TILE_BYTES: Final = 1 << 20
"""Bytes of float32 in a piece."""


def compute_plainly(module: torch.nn.Module, features: frozenset[str] | None = None) -> int:
    """Have the linear modules with narrow weights multiply as this processor does best; return how many.

    Those that have got another product already are left alone. `features` are the processor's, by default this one's.
    """
    import torch

    chosen = [part for part in module.modules() if type(part) is torch.nn.Linear and "forward" not in vars(part)]
    narrow = [part for part in chosen if _name(part.weight) in NATIVE]
    for linear in narrow:
        own = few_shapes if multiplies(_name(linear.weight), features) else widened
        linear.forward = partial(own, linear)  # type: ignore[method-assign]
    return len(narrow)


def widened(linear: torch.nn.Linear, rows: torch.Tensor) -> torch.Tensor:
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


def few_shapes(linear: torch.nn.Linear, rows: torch.Tensor) -> torch.Tensor:
    """Return what the module's own `forward` returns for `rows` [..., in]."""
    import torch

    flat = rows.reshape(-1, rows.shape[-1])
    result = torch.nn.functional.linear(padded(flat), linear.weight, linear.bias)
    return result[: len(flat)].view(*rows.shape[:-1], result.shape[-1])


def _name(tensor: torch.Tensor) -> str:
    return BY_TORCH_NAME.get(str(tensor.dtype).removeprefix("torch."), "")
