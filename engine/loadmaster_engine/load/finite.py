"""Values that are no finite numbers, found in bytes that are being moved anyway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from loadmaster_engine.load.regions import Bytes
from loadmaster_hookspecs.dtypes import TORCH_NAMES, itemsize
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.plan import ReadOp, Region


class _Bits(NamedTuple):
    """The bits of an element as an unsigned integer, and those of its exponent: infinities and NaN have all of these set."""

    integer: str
    exponent: int
    mantissa: int


_BITS: Final[Mapping[str, _Bits]] = {
    "F64": _Bits("<u8", 0x7FF0_0000_0000_0000, 0x000F_FFFF_FFFF_FFFF),
    "F32": _Bits("<u4", 0x7F80_0000, 0x007F_FFFF),
    "F16": _Bits("<u2", 0x7C00, 0x03FF),
    "BF16": _Bits("<u2", 0x7F80, 0x007F),
}


def first_not_finite(data: Bytes, dtype: str) -> tuple[int, str] | None:
    """Return the number of the first element of `data` that is not finite, and `nan` or `inf`; None where all are.

    Integers have no such elements; floats of 8 bits are not looked at.
    """
    bits = _BITS.get(dtype)
    if bits is None:
        return None
    elements = np.ascontiguousarray(data).reshape(-1).view(bits.integer)
    wrong = (elements & bits.exponent) == bits.exponent
    if not wrong.any():
        return None
    place = int(wrong.argmax())
    return place, "nan" if int(elements[place]) & bits.mantissa else "inf"


class FiniteCheck:
    """Refuses bytes of an adapter that hold NaN or infinity, as they arrive.

    `dtypes` has the types of the plan's parameters, and `file_name` says what a file of the plan is called.
    """

    def __init__(self, dtypes: Mapping[str, str], file_name: Callable[[int], str]) -> None:
        self._dtypes = dtypes
        self._file_name = file_name

    def __call__(self, op: ReadOp, source: Region, moved: Bytes) -> None:
        """Look at what a part of an operation has moved. Raises IntegrityError LM-ADAPTER-VALUES with the place."""
        dtype = self._dtypes[op.parameter]
        found = first_not_finite(moved, dtype)
        if found is None:
            return
        place, value = found
        offset = _byte_at(source, place * itemsize(dtype) * source.nbytes // moved.size)
        raise IntegrityError(
            "LM-ADAPTER-VALUES",
            "a tensor of the adapter has a value that is not a finite number",
            where={"file": self._file_name(op.file), "tensor": op.tensor, "offset": offset},
            why=f"{value} as {TORCH_NAMES[dtype]}{', to which it is cast' if op.transform else ''}, at this offset",
            hints=["the training that made it diverged, or the file is damaged: use another checkpoint of the adapter"],
        )


def _byte_at(region: Region, number: int) -> int:
    """Return where byte `number` of a region lies, counted as the region is walked."""
    rest, offset = divmod(number, region.run)
    for count, stride in reversed(region.steps):
        rest, index = divmod(rest, count)
        offset += index * stride
    return region.offset + offset
