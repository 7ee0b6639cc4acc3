"""Writes synthetic tensors as safetensors files with an index, in blocks: memory stays small whatever the model's size."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

BLOCK_BYTES: Final = 16 << 20
"""Bytes of a tensor that are made and written at a time."""

WIDTHS: Final = {"BF16": 2, "F16": 2, "I32": 4}
"""Bytes per element of the types that are written."""


class Stored(NamedTuple):
    """A tensor to be written: name, element type as in safetensors, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the file."""
        return math.prod(self.shape) * WIDTHS[self.dtype]


Values = Callable[[Stored, np.random.Generator], Iterator[npt.NDArray[Any]]]
"""Yields the stored elements of a tensor in order, in blocks."""


def write_files(folder: Path, everything: Sequence[Stored], files: int, values: Values) -> None:
    """Write tensors into about `files` files of like size, and their index; the same bytes every time."""
    total = sum(stored.nbytes for stored in everything)
    parts = _split(everything, total / files)
    numbers = np.random.default_rng(0)
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05}-of-{len(parts):05}.safetensors"
        _write_file(folder / name, part, numbers, values)
        weight_map |= dict.fromkeys((stored.name for stored in part), name)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a JSON object, indented."""
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def _split(everything: Sequence[Stored], target: float) -> list[list[Stored]]:
    """Return the tensors in files of about `target` bytes."""
    parts: list[list[Stored]] = [[]]
    written = 0
    for stored in everything:
        if written >= target * len(parts) - 1:
            parts.append([])
        parts[-1].append(stored)
        written += stored.nbytes
    return parts


def _write_file(path: Path, part: Sequence[Stored], numbers: np.random.Generator, values: Values) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for stored in part:
        header[stored.name] = {"dtype": stored.dtype, "shape": stored.shape, "data_offsets": [at, at + stored.nbytes]}
        at += stored.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for stored in part:
            for block in values(stored, numbers):
                stream.write(block.data)
        # Pages that are not on the disk yet cannot be dropped from the page cache later.
        stream.flush()
        os.fsync(stream.fileno())
