"""What lies in a model folder, judged by name alone: tensor files, indexes, and files that are never opened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.findings import Ignored
from loadmaster_hookspecs.sources import FileEntry
from loadmaster_plugins.hf_safetensors.wording import fold

SUFFIX: Final = ".safetensors"
INDEX_SUFFIX: Final = ".safetensors.index.json"
MAIN_INDEX: Final = "model.safetensors.index.json"

PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
OTHER_WEIGHTS: Final = (".gguf", ".ggml", ".h5", ".msgpack", ".onnx", ".npz", ".tflite", ".ot")

ELSEWHERE: Final[Mapping[str, str]] = {
    "consolidated": "the same weights in another layout",
    "adapter_": "an adapter, not the model",
}
"""Beginnings of the names of tensor files that lie beside a model's own ones, and what such a file is."""

_NUMBERED: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a folder's files, by what they are. All tuples are sorted."""

    names: frozenset[str]
    tensor_files: tuple[str, ...]
    indexes: tuple[str, ...]
    pickles: tuple[str, ...]
    ignored: tuple[Ignored, ...]

    @property
    def own_files(self) -> tuple[str, ...]:
        """The tensor files that belong to the model when no index says so: all but known companions, if others exist."""
        own = tuple(name for name in self.tensor_files if not elsewhere(name))
        return own or self.tensor_files

    def index(self) -> str:
        """Return the name of the index to use, or an empty string. Raises IntegrityError when several could be meant."""
        if MAIN_INDEX in self.indexes or not self.indexes:
            return MAIN_INDEX if self.indexes else ""
        if len(self.indexes) > 1:
            raise IntegrityError(
                "LM-INDEX-AMBIGUOUS",
                "the folder has several shard indexes and none has the usual name",
                why=fold(self.indexes),
                hints=(f"name the one to use {MAIN_INDEX}",),
            )
        return self.indexes[0]


def catalog(entries: Iterable[FileEntry]) -> Catalog:
    """Sort a folder's files by kind, without opening any."""
    names = sorted(entry.name for entry in entries)
    pickles = [name for name in names if name.endswith(PICKLES)]
    ignored = [Ignored(name=name, reason="can hold code that runs when it is loaded; never opened") for name in pickles]
    ignored += [Ignored(name=name, reason="weights of another format") for name in names if name.endswith(OTHER_WEIGHTS)]
    return Catalog(
        names=frozenset(names),
        tensor_files=tuple(name for name in names if name.endswith(SUFFIX)),
        indexes=tuple(name for name in names if name.endswith(INDEX_SUFFIX)),
        pickles=tuple(pickles),
        ignored=tuple(ignored),
    )


def elsewhere(name: str) -> str:
    """Return what a tensor file is that does not belong to the model itself, or an empty string."""
    return next((meaning for start, meaning in ELSEWHERE.items() if name.startswith(start)), "")


def left_out(name: str, reason: str) -> Ignored:
    """Return the record of a tensor file that is left out; one of a known kind needs no warning."""
    known = elsewhere(name)
    return Ignored(name=name, reason=f"{reason}; {known}" if known else reason, notable=not known)


def absent_numbers(names: Iterable[str]) -> list[str]:
    """Return the files that numbered names (`model-00001-of-00003.safetensors`) say must exist but that are not there."""
    present: dict[tuple[str, int], set[int]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            present.setdefault((match["stem"], int(match["total"])), set()).add(int(match["number"]))
    return [
        f"{stem}-{number:05}-of-{total:05}{SUFFIX}"
        for (stem, total), numbers in present.items()
        for number in range(1, total + 1)
        if number not in numbers
    ]
