"""The safetensors header: eight bytes of length, a JSON object, then the tensors' bytes without gaps.

The header is the only thing that is read, and nothing in it is believed: lengths against the file's size, names, element types,
shapes against byte ranges, ranges against one another. All faults of one kind are reported together.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import msgspec

from loadmaster_hookspecs.dtypes import BITS, itemsize
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_plugins.hf_safetensors.strict_json import JsonFault, parse_object
from loadmaster_plugins.hf_safetensors.wording import count, fold, quoted

PREFIX: Final = 8
"""Bytes of the length that stands before the header, little endian."""

LONGEST_HEADER: Final = 100_000_000
"""Bytes that a header may have, by the format's own rule."""

MOST_DIMENSIONS: Final = 64
LARGEST: Final = 2**63 - 1
"""The largest dimension or offset: what a signed 64-bit number holds."""

_KEYS: Final = {"dtype", "shape", "data_offsets"}
_WHOLE: Final = {int}

_SUMMARIES: Final = {
    "LM-HEADER-NAME": "the header has tensor names that are empty or cannot be printed",
    "LM-HEADER-ENTRY": "the header has malformed entries",
    "LM-HEADER-DTYPE": "the header has element types that are not read",
    "LM-HEADER-SHAPE": "the header has shapes that do not fit their byte ranges",
    "LM-HEADER-OFFSETS": "the header has byte ranges that are impossible, overlap or leave gaps",
}


class StoredTensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor as its file describes it: bytes `start` to `stop`, counted from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """A header that was judged sound: its tensors in file order, its bytes with the length prefix, their SHA-256."""

    tensors: tuple[StoredTensor, ...]
    nbytes: int
    sha256: str


class _Fault(Exception):
    """One tensor's fault: the error code and what is wrong with that tensor."""


def header_length(prefix: bytes, size: int) -> int:
    """Return the bytes of the header behind the length prefix, for a file of `size` bytes. Raises IntegrityError."""
    if len(prefix) < PREFIX:
        raise _truncated(f"it has {size} bytes, fewer than the {PREFIX} of a safetensors length field")
    length = int.from_bytes(prefix, "little")
    if 2 <= length <= min(LONGEST_HEADER, size - PREFIX):
        return length
    if length <= LONGEST_HEADER and length > size - PREFIX:
        raise _truncated(f"its header alone ends at byte {PREFIX + length}; the file has {size} bytes")
    raise IntegrityError(
        "LM-HEADER-LENGTH",
        "the file does not begin with a possible header length",
        why=f"its first bytes {prefix!r} would mean a header of {length} bytes; 2 to {LONGEST_HEADER} are possible",
        hints=("the file is not safetensors, or damaged at its beginning: download it again",),
    )


def parse_header(raw: bytes, size: int) -> Header:
    """Judge a header against the size of its file and return what it holds.

    `raw` is the length prefix and the header, `size` the bytes of the whole file. Raises IntegrityError; the caller adds the
    file's name.
    """
    document = _document(raw[PREFIX:])
    _check_metadata(document.pop("__metadata__", {}))
    tensors: list[StoredTensor] = []
    faults: dict[str, list[str]] = {}
    for name, entry in document.items():
        try:
            tensors.append(_tensor(name, entry, len(raw)))
        except _Fault as fault:
            code, text = fault.args
            faults.setdefault(code, []).append(f"{quoted(name)} {text}")
    if not faults:
        tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
        faults = _gaps(tensors, len(raw))
    for code, texts in faults.items():
        raise IntegrityError(code, _SUMMARIES[code], why=f"{count(len(texts), 'fault')}: {fold(texts)}")
    _check_size(tensors[-1].stop if tensors else len(raw), size)
    return Header(tensors=tuple(tensors), nbytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())


def _document(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise IntegrityError("LM-HEADER-JSON", "the header is not a JSON object", why=f"it begins with {text[:16]!r}")
    try:
        return parse_object(text)
    except JsonFault as fault:
        raise IntegrityError("LM-HEADER-JSON", "the header is not a sound JSON object", why=str(fault)) from None


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise IntegrityError(
            "LM-HEADER-METADATA", "the header's __metadata__ is malformed", why="it must be an object whose values are strings"
        )


def _tensor(name: str, entry: Any, base: int) -> StoredTensor:
    """Return one tensor; its data offsets count from `base`. Raises _Fault."""
    if not name or not name.isprintable():
        raise _Fault("LM-HEADER-NAME", "is no possible name")
    if type(entry) is not dict or entry.keys() != _KEYS:
        raise _Fault("LM-HEADER-ENTRY", "must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if type(shape) is not list or type(offsets) is not list or len(offsets) != 2 or {*map(type, shape + offsets)} != _WHOLE:
        raise _Fault("LM-HEADER-ENTRY", "must have a list of whole numbers as shape and two whole numbers as data_offsets")
    if type(dtype) is not str or dtype not in BITS:
        given = quoted(dtype) if isinstance(dtype, str) else f"a {type(dtype).__name__}"
        raise _Fault("LM-HEADER-DTYPE", f"has {given}; read are {' '.join(BITS)}")
    if len(shape) > MOST_DIMENSIONS or (shape and not 0 <= min(shape) <= max(shape) <= LARGEST):
        raise _Fault("LM-HEADER-SHAPE", f"has more than {MOST_DIMENSIONS} dimensions, or one below 0 or above 2^63 - 1")
    start, stop = offsets
    if not 0 <= start <= stop <= LARGEST:
        raise _Fault("LM-HEADER-OFFSETS", f"has the range {_number(start)} to {_number(stop)}")
    needed = math.prod(shape) * itemsize(dtype)
    if needed != stop - start:
        raise _Fault("LM-HEADER-SHAPE", f"of {dtype} {shape} takes {_number(needed)} bytes and has {stop - start}")
    return StoredTensor(name, dtype, tuple(shape), base + start, base + stop)


def _gaps(tensors: list[StoredTensor], base: int) -> dict[str, list[str]]:
    """Return the faults between neighbours: every tensor must begin where the one before it ends."""
    texts: list[str] = []
    end = base
    for tensor in tensors:
        if tensor.start != end:
            fault = "overlaps the bytes before it" if tensor.start < end else "leaves unused bytes before it"
            texts.append(f"{quoted(tensor.name)} {fault} (begins at {tensor.start}, expected {end})")
        end = max(end, tensor.stop)
    return {"LM-HEADER-OFFSETS": texts} if texts else {}


def _check_size(end: int, size: int) -> None:
    """Compare where the tensors end with where the file ends."""
    if size < end:
        raise _truncated(f"its header declares {end} bytes; the file has {size}, {end - size} are missing")
    if size > end:
        raise IntegrityError(
            "LM-FILE-TRAILING",
            "the file has bytes that belong to no tensor",
            why=f"its header declares {end} bytes; the file has {size}, {size - end} too many",
            hints=("the file was changed after it was written: download it again",),
        )


def _truncated(why: str) -> IntegrityError:
    return IntegrityError(
        "LM-FILE-TRUNCATED",
        "the file is truncated",
        why=why,
        hints=("the download or copy is incomplete: fetch the file again",),
    )


def _number(value: int) -> str:
    """Return a number as text, also one too long for Python to print."""
    return str(value) if abs(value) < 2**128 else f"a {value.bit_length()}-bit number"
