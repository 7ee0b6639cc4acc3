"""Checks of what quantizers and kernels return while planning.

A mistake in a plugin would otherwise show far away, as a wrong shape or as wrong numbers. The checks run inside the context
that attributes exceptions, so their TypeError and ValueError leave as PluginError LM-PLUGIN-FAILED that names the plugin.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isfinite
from typing import Final

import msgspec

from loadmaster_hookspecs.dtypes import TORCH_NAMES
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.quantization import Claim, StoredMatrix

LARGEST: Final = 1 << 48
"""Rows, columns or elements of a group: more than any tensor can have."""


def checked_claim(value: object, stored: StoredMatrix) -> Claim | None:
    """Return the claim. Raises TypeError or ValueError for none, for absurd sizes and for tensors that are not there."""
    if value is None:
        return None
    if not isinstance(value, Claim):
        raise TypeError(f"returned {type(value).__name__} instead of a Claim or None")
    claim = msgspec.convert(msgspec.to_builtins(value), Claim)
    absent = [suffix for suffix in claim.suffixes if suffix not in stored.tensors]
    if absent or not claim.suffixes or len(set(claim.suffixes)) < len(claim.suffixes):
        raise ValueError(f"claims {list(claim.suffixes)} of {sorted(stored.tensors)}: each has to be there, once")
    if not isfinite(claim.score):
        raise ValueError(f"score {claim.score} is no number that others can be compared with")
    for name, lowest in (("out_features", 1), ("in_features", 1), ("bits", 1), ("group_size", 0)):
        number = getattr(claim, name)
        if not lowest <= number < LARGEST:
            raise ValueError(f"{name} = {number}, at least {lowest} is expected, and less than {LARGEST}")
    _check_dtype(claim.dtype)
    return claim if claim.general is None else msgspec.structs.replace(claim, general=checked_claim(claim.general, stored))


def checked_layouts(value: object, claim: Claim, stored: StoredMatrix) -> tuple[TensorLayout, ...]:
    """Return a quantizer's layouts of the tensors that it claims.

    Raises TypeError or ValueError where they are of other tensors, say what only kernels may say, or do not give the stored
    shapes for a matrix of the claimed size.
    """
    layouts = _layouts(value)
    names = [layout.name for layout in layouts]
    if not layouts or len(set(names)) < len(names) or not set(names) <= set(claim.suffixes):
        raise ValueError(f"lays out {names}, and claims {list(claim.suffixes)}: some of these are expected, each once")
    for layout in layouts:
        if layout.computed or layout.scratched or layout.staged:
            raise ValueError(f"marks {layout.name} as computed, scratched or staged, which only a kernel may do")
        _check_shape(layout, claim, stored.tensors[layout.name].shape)
    return layouts


def checked_kernel_layouts(value: object, given: Sequence[TensorLayout], axes: Collection[str]) -> tuple[TensorLayout, ...]:
    """Return a kernel's layouts. `given` are those of the quantizer, `axes` the axes that computed tensors may have.

    Raises TypeError or ValueError where a given tensor is missing or changed in more than its marks, or an added one is not
    computed.
    """
    layouts = _layouts(value)
    by_name = {layout.name: layout for layout in layouts}
    for layout in given:
        found = by_name.pop(layout.name, None)
        if found is None or (found.dims, found.dtype, found.computed) != (layout.dims, layout.dtype, False):
            raise ValueError(f"{layout.name} is {'left out' if found is None else 'changed'}: a kernel may only mark it")
    for layout in by_name.values():
        if not layout.computed or layout.scratched or layout.staged:
            raise ValueError(f"{layout.name} is in no file: it has to be computed, and stays")
        unknown = {dim.axis for dim in layout.dims} - set(axes)
        if unknown:
            raise ValueError(f"{layout.name} has the axes {sorted(unknown)}, known are {sorted(axes)}")
    return layouts


def _layouts(value: object) -> tuple[TensorLayout, ...]:
    """Return a sequence of well-formed layouts as a tuple."""
    if not isinstance(value, Sequence) or not all(isinstance(layout, TensorLayout) for layout in value):
        raise TypeError(f"returned {type(value).__name__} instead of a tuple of TensorLayout")
    layouts = msgspec.convert(msgspec.to_builtins(tuple(value)), tuple[TensorLayout, ...])
    for layout in layouts:
        if layout.dtype:
            _check_dtype(layout.dtype)
        for dim in layout.dims:
            if not (1 <= dim.per < LARGEST and 1 <= dim.words < LARGEST):
                raise ValueError(
                    f"{layout.name}: per = {dim.per}, words = {dim.words} along {dim.axis}, at least 1 is expected"
                )
    return layouts


def _check_shape(layout: TensorLayout, claim: Claim, shape: tuple[int, ...]) -> None:
    """Raise ValueError where a matrix of the claimed size has not the stored shape."""
    sizes = {"out": claim.out_features, "in": claim.in_features}
    expected = [_extent(dim, sizes, stored) for dim, stored in zip(layout.dims, shape, strict=False)]
    if len(layout.dims) != len(shape) or expected != list(shape):
        raise ValueError(
            f"{layout.name} is stored as {list(shape)}, and {len(layout.dims)} dimensions of {expected} are laid out for a "
            f"matrix of {claim.out_features} rows and {claim.in_features} columns"
        )


def _extent(dim: AxisMap, sizes: dict[str, int], stored: int) -> int:
    """Return the stored length along rows or columns; along any other axis it is what it is."""
    return dim.extent(sizes[dim.axis]) if dim.axis in sizes else stored


def _check_dtype(dtype: str) -> None:
    if dtype not in TORCH_NAMES:
        raise ValueError(f"no element type is called {dtype!r}: {', '.join(sorted(TORCH_NAMES))}")
