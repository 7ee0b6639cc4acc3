"""Builds tiny checkpoints for tests: sound ones with the safetensors library, broken and hostile ones by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from loadmaster_hookspecs.errors import ExitCode, IntegrityError
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.sources import FileEntry, RangeReader
from loadmaster_plugins.hf_safetensors.loader import HfSafetensors
from loadmaster_plugins.local_source.provider import LocalProvider

Tensors = dict[str, npt.NDArray[Any]]

CONFIG: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}
INDEX = "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 4976698672\n"


def tensors(names: Sequence[str] = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")) -> Tensors:
    """Return small tensors of several types and shapes, each with its own values."""
    types = (np.float32, np.float16, np.int64)
    return {name: np.arange(6, dtype=types[i % 3]).reshape(2, 3) + i for i, name in enumerate(names)}


def write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


def write_single(folder: Path, content: Tensors | None = None, name: str = "model.safetensors") -> Path:
    """Write one tensor file and a configuration; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(content if content is not None else tensors(), folder / name, metadata={"format": "pt"})
    write_json(folder / "config.json", CONFIG)
    return folder


def shard_name(number: int, total: int) -> str:
    return f"model-{number:05}-of-{total:05}.safetensors"


def write_shards(folder: Path, parts: Sequence[Tensors], *, index: bool = True) -> Path:
    """Write one numbered file per part, a configuration, and on request the index; return the folder."""
    names = [shard_name(number + 1, len(parts)) for number in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        write_single(folder, part, name)
    if index:
        write_index(folder, {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part})
    return folder


def three_parts() -> list[Tensors]:
    """Return the tensors of three shards, two in each."""
    return [tensors((f"layers.{i}.a", f"layers.{i}.b")) for i in range(3)]


def write_index(folder: Path, weight_map: Mapping[str, object], name: str = INDEX) -> None:
    write_json(folder / name, {"metadata": {"total_size": 0}, "weight_map": weight_map})


def header(document: object) -> bytes:
    """Return length prefix and header for a document, or for raw header bytes."""
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return len(text).to_bytes(8, "little") + text


def entry(shape: Sequence[object], start: object, stop: object, dtype: object = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def write_raw(folder: Path, content: bytes, name: str = "model.safetensors") -> Path:
    """Write a tensor file byte by byte beside a sound configuration; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    write_json(folder / "config.json", CONFIG)
    return folder


def hub_cache(root: Path, written: Path) -> Path:
    """Move a folder's files into the hub-cache layout below `root`; return the snapshot folder, which holds links only."""
    repository = root / "models--org--tiny"
    snapshot = repository / "snapshots" / "0123abcd"
    blobs = repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(written.iterdir())):
        path.rename(blobs / f"blob{number:02}")
        os.symlink(f"../../blobs/blob{number:02}", snapshot / path.name)
    return snapshot


class MemorySource:
    """A source whose files are bytes in memory: shows that a format needs nothing but the protocol."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.contents = dict(files)
        self.uri = "memory:"
        self.bytes_read = 0

    def files(self) -> tuple[FileEntry, ...]:
        return tuple(FileEntry(name=name, size=len(self.contents[name])) for name in sorted(self.contents))

    def size(self, name: str) -> int:
        return len(self._content(name))

    def read(self, name: str, offset: int, size: int) -> bytes:
        part = self._content(name)[offset : offset + size]
        self.bytes_read += len(part)
        return part

    def open(self, name: str) -> RangeReader:
        return MemoryReader(self._content(name))

    def _content(self, name: str) -> bytes:
        if name not in self.contents:
            raise IntegrityError("LM-FILE-MISSING", "no such file", where={"file": name})
        return self.contents[name]


class MemoryReader:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.closed = False

    def read_into(self, offset: int, view: memoryview) -> int:
        part = self.content[offset : offset + len(view)]
        view[: len(part)] = part
        return len(part)

    def mapping(self) -> memoryview | None:
        return None

    def close(self) -> None:
        self.closed = True


def open_index(path: Path) -> CheckpointIndex:
    """Return the index that the first-party plugins make of a folder or file."""
    return HfSafetensors().open(LocalProvider().open(str(path)))


def refusal(path: Path) -> IntegrityError:
    """Return the error with which a checkpoint is refused; it must be one of data integrity."""
    with pytest.raises(IntegrityError) as caught:
        open_index(path)
    assert caught.value.report.exit_code == ExitCode.DATA_INTEGRITY
    return caught.value
