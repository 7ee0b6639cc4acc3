"""The header of a `.npy` file, as the documentation of `numpy.lib.format` describes it.

`\\x93NUMPY`, a version of two bytes, the length of the rest (two bytes little endian in version 1, four in 2 and 3), then a
Python literal: a dictionary with `descr`, `fortran_order` and `shape`. The array's bytes follow.
"""

from __future__ import annotations

import ast
from typing import Final, NamedTuple

from loadmaster.plugin import IntegrityError, Source

ELEMENTS: Final = {
    "<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8",
    "<u8": "U64", "<u4": "U32", "<u2": "U16", "|u1": "U8", "|b1": "BOOL",
}  # fmt: skip
"""loadmaster's element types by numpy's descriptions."""

LONGEST: Final = 4096
"""Bytes that a header may have; the plain ones have 128."""


class Header(NamedTuple):
    """A header that was judged: all bytes before the array's own, numpy's description of its elements, and its shape."""

    raw: bytes
    descr: str
    shape: tuple[int, ...]


def read_header(source: Source, name: str) -> Header:
    """Read and judge the header of a file. Raises IntegrityError for a malformed one and for arrays that are not read."""
    prefix = source.read(name, 0, 12)
    if len(prefix) < 12 or not prefix.startswith(b"\x93NUMPY") or prefix[6] not in (1, 2, 3):
        raise IntegrityError("LM-NPY-MAGIC", "not a .npy file of version 1, 2 or 3", why=f"it begins with {prefix[:8]!r}")
    begin = 10 if prefix[6] == 1 else 12
    end = begin + int.from_bytes(prefix[8:begin], "little")
    if not 12 < end <= LONGEST:
        raise _malformed(f"it would end at byte {end}, and {LONGEST} is the limit")
    raw = prefix + source.read(name, 12, end - 12)
    return Header(raw, *_parse(raw[begin:]))


def _parse(text: bytes) -> tuple[str, tuple[int, ...]]:
    try:
        fields = ast.literal_eval(text.decode("utf-8"))
        descr, fortran_order, shape = (fields.pop(key) for key in ("descr", "fortran_order", "shape"))
    except (ValueError, SyntaxError, TypeError, KeyError, AttributeError, MemoryError, RecursionError) as error:
        raise _malformed(f"{type(error).__name__}: {error}") from None
    if fields or type(fortran_order) is not bool or type(shape) is not tuple or not all(map(_is_length, shape)):
        raise _malformed("it must have exactly descr, fortran_order (True or False) and shape (a tuple of lengths)")
    if fortran_order:
        raise IntegrityError("LM-NPY-FORTRAN", "the array is in Fortran order", hints=["save numpy.ascontiguousarray(array)"])
    if "O" in str(descr):
        raise IntegrityError("LM-NPY-OBJECT", "the array holds pickled Python objects, which are never read")
    if str(descr).startswith(">"):
        raise IntegrityError("LM-NPY-ENDIAN", f"the array is big endian ({descr})", hints=["convert it with array.astype"])
    if not isinstance(descr, str) or descr not in ELEMENTS:
        raise IntegrityError("LM-NPY-DTYPE", f"elements {descr!r} are not read", hints=[f"read are {' '.join(ELEMENTS)}"])
    return descr, shape


def _is_length(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _malformed(why: str) -> IntegrityError:
    return IntegrityError("LM-NPY-HEADER", "the .npy header is malformed", why=why)
