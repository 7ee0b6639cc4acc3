"""The shard index (`model.safetensors.index.json`): which file holds which tensor, as the checkpoint's author says."""

from __future__ import annotations

from typing import Final

import msgspec

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.sources import Source
from loadmaster_plugins.hf_safetensors.catalog import SUFFIX
from loadmaster_plugins.hf_safetensors.documents import read_object
from loadmaster_plugins.hf_safetensors.wording import count, fold, quoted

LONGEST_INDEX: Final = 100_000_000
"""Bytes that an index may have: room for a million tensors."""


class ShardIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A sound index: its own file name, and the file of every tensor."""

    name: str
    weight_map: dict[str, str]

    @property
    def files(self) -> list[str]:
        """The files that the index names, sorted."""
        return sorted(set(self.weight_map.values()))


def read_index(source: Source, name: str) -> ShardIndex:
    """Read and judge the index. Raises IntegrityError naming the index and, for bad paths, all of them."""
    document = read_object(source, name, LONGEST_INDEX, "LM-INDEX-INVALID")
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _invalid(name, "it must have a weight_map object that lists at least one tensor")
    odd = [quoted(tensor) for tensor, file in weight_map.items() if not tensor or not isinstance(file, str)]
    if odd:
        raise _invalid(name, f"{count(len(odd), 'tensor')} without a file name: {fold(odd)}")
    outside = [quoted(file) for file in sorted(set(weight_map.values())) if not _inside(file)]
    if outside:
        raise IntegrityError(
            "LM-INDEX-PATH",
            "the index names files that are not tensor files of this folder",
            where={"file": name},
            why=f"{count(len(outside), 'bad path')}: {fold(outside)}; allowed are relative paths with '/' that end in {SUFFIX}",
            hints=("do not use this checkpoint unless you know who made it",),
        )
    return ShardIndex(name=name, weight_map=weight_map)


def _inside(path: str) -> bool:
    """Whether a path from an index is relative, plain, and names a tensor file."""
    parts = path.split("/")
    return path.endswith(SUFFIX) and path.isprintable() and "\\" not in path and not {"", ".", ".."} & set(parts)


def _invalid(name: str, why: str) -> IntegrityError:
    return IntegrityError("LM-INDEX-INVALID", "the shard index is malformed", where={"file": name}, why=why)
