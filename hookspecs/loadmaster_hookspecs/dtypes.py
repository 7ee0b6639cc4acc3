"""Element types, named as the safetensors header names them.

Source of the names: the safetensors format description (`F32`, `BF16`, `I64`, ...).
"""

from __future__ import annotations

from typing import Final

BITS: Final[dict[str, int]] = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
}
"""Bits per element of every element type that loadmaster reads."""

FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16"})
"""The types that a plain parameter may have and that can be cast into one another."""

TORCH_NAMES: Final[dict[str, str]] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
"""The attribute of the `torch` module that stands for each element type."""

BY_TORCH_NAME: Final[dict[str, str]] = {torch_name: name for name, torch_name in TORCH_NAMES.items()}
"""The inverse of `TORCH_NAMES`: `bfloat16` -> `BF16`."""


def itemsize(dtype: str) -> int:
    """Return the bytes one element takes. Raises KeyError for a type that loadmaster does not read."""
    return BITS[dtype] // 8
