"""From what a pickle describes to tensors in the file: every number in it is compared with the archive's members."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final, NamedTuple, NoReturn

from loadmaster_hookspecs.dtypes import itemsize
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_plugins.torch_zip.archive import Archive, Member, ReadAt
from loadmaster_plugins.torch_zip.machine import PARAMETER, STORAGES, TENSOR, Call, Name, Reference, refused, run

PICKLE: Final = "data.pkl"
ORDER: Final = "byteorder"
MOST_DIMENSIONS: Final = 64
STORAGE_FIELDS: Final = 5
TENSOR_FIELDS: Final = (6, 7)


class Found(NamedTuple):
    """A tensor in the file, in C order: bytes `start` to `stop`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Contents(NamedTuple):
    """The tensors of a file in file order; what was read of it, and the SHA-256 of that."""

    tensors: tuple[Found, ...]
    nbytes: int
    sha256: str


def examine(read: ReadAt, size: int) -> Contents:
    """Return what a file holds, from its directory and its pickle alone. Raises IntegrityError LM-ARCHIVE-..."""
    archive = Archive(read, size)
    if ORDER in archive.names() and archive.content(ORDER) != b"little":
        _fault("the file", f"byte order {archive.content(ORDER)[:16]!r}; little is read")
    pickle = archive.content(PICKLE)
    table = run(pickle)
    if not isinstance(table, dict) or not all(isinstance(value, Call) for value in table.values()):
        raise refused("it is no table of tensors by their names")
    homes: dict[str, Member] = {}
    tensors = sorted((_tensor(archive, homes, *item) for item in table.items()), key=lambda each: (each.start, each.stop))
    _check_apart(tensors)
    canonical = json.dumps([sorted(homes.items()), size], separators=(",", ":"))
    return Contents(tuple(tensors), len(pickle), hashlib.sha256(pickle + canonical.encode()).hexdigest())


def _tensor(archive: Archive, homes: dict[str, Member], name: str, call: Call) -> Found:
    """Return one tensor; `homes` collects the members that tensors lie in."""
    if not name or not name.isprintable():
        _fault(repr(name[:200]), "no possible name")
    if call.name == PARAMETER:
        call = call.arguments[0] if call.arguments else call
    if not isinstance(call, Call) or call.name != TENSOR or len(call.arguments) not in TENSOR_FIELDS:
        _fault(name, "no tensor")
    storage, offset, shape, strides = call.arguments[:4]
    dtype, key, count = _storage(name, storage)
    if not all(isinstance(each, tuple) and all(map(_whole, each)) for each in (shape, strides)) or not _whole(offset):
        _fault(name, "sizes, strides and offset must be whole numbers")
    if len(shape) > MOST_DIMENSIONS or not _dense(shape, strides):
        _fault(name, f"shape {list(shape)} with strides {list(strides)}; tensors must be stored whole and in order")
    elements, width = math.prod(shape), itemsize(dtype)
    if offset + elements > count:
        _fault(name, f"elements {offset} to {offset + elements} of a storage of {count}")
    home = homes.get(key)
    if home is None:
        home = homes[key] = archive.member(f"data/{key}")
    if count * width != home.size or home.start % width:
        _fault(name, f"a storage of {count} {dtype} in {home.size} bytes at byte {home.start}")
    start = home.start + offset * width
    return Found(name, dtype, shape, start, start + elements * width)


def _storage(name: str, storage: Any) -> tuple[str, str, int]:
    """Return element type, member and elements of a storage."""
    key = storage.key if isinstance(storage, Reference) else None
    if not isinstance(key, tuple) or len(key) != STORAGE_FIELDS or key[0] != "storage" or not isinstance(key[1], Name):
        _fault(name, "no storage")
    kind, member, count = key[1].text, key[2], key[4]
    if kind not in STORAGES or not isinstance(member, str) or not member.isdecimal() or not _whole(count):
        _fault(name, f"{kind} is no storage that is read, or its member and size are not named as torch does")
    return STORAGES[kind], member, count


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether a tensor lies in C order without gaps; the stride of a dimension of one element says nothing."""
    if len(shape) != len(strides):
        return False
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != step:
            return 0 in shape
        step *= extent
    return True


def _check_apart(tensors: Iterable[Found]) -> None:
    for first, second in pairwise(each for each in tensors if each.stop > each.start):
        if second.start < first.stop:
            _fault(second.name, f"it shares bytes with {first.name}")


def _fault(name: str, why: str) -> NoReturn:
    raise IntegrityError(
        "LM-ARCHIVE-TENSOR",
        "a tensor of the archive cannot be read",
        where={"tensor": name},
        why=why,
        hints=("save the adapter as safetensors, which has every tensor whole and by itself",),
    )
