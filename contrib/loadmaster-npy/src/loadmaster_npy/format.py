"""The format: a folder with a `.npy` file per tensor, named after it, and `config.json` beside them.

`dtypes.json` gives the element types that numpy has no name for: `{"lm_head.weight": "BF16"}`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import prod
from typing import Any, Final

from loadmaster.plugin import CheckpointIndex, FileRef, IntegrityError, Match, RangeReader, Source, TensorMeta, itemsize

from loadmaster_npy.header import ELEMENTS, read_header

STAND_INS: Final = {"BF16": "<u2", "F8_E4M3": "|u1", "F8_E5M2": "|u1"}
"""Element types that numpy lacks, and what their bits are stored as."""


class NpyFolder:
    """Reads folders of `.npy` files."""

    name = "npy"

    def detect(self, source: Source) -> Match | None:
        """Match by file names, with a score below that of formats which are made for weights."""
        arrays = _arrays(source)
        return Match(score=0.8, evidence=f"{len(arrays)} .npy files, {arrays[0]} first") if arrays else None

    def open(self, source: Source) -> CheckpointIndex:
        """Judge every file by its header and return the index. Raises IntegrityError that names the first faulty file."""
        config, dtypes = _document(source, "config.json"), _document(source, "dtypes.json")
        judged = [_judge(source, name, number, dtypes) for number, name in enumerate(_arrays(source))]
        files = tuple(file for file, _ in judged)
        return CheckpointIndex(
            source=source.uri,
            format=self.name,
            files=files,
            tensors={tensor.name: tensor for _, tensor in judged},
            config=config,
            generation=_document(source, "generation_config.json"),
            fingerprint=_sha256([[[file.name, file.size, file.header_sha256] for file in files], config, dtypes]),
        )

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        """Open a file for the range reads of a worker. Raises IntegrityError when it changed since it was judged."""
        reader = source.open(file.name)
        header = bytearray(file.header_bytes)
        reader.read_into(0, memoryview(header))
        if source.size(file.name) != file.size or hashlib.sha256(header).hexdigest() != file.header_sha256:
            reader.close()
            raise IntegrityError("LM-NPY-CHANGED", "a file is not the one that was planned with", where={"file": file.name})
        return reader


def _arrays(source: Source) -> list[str]:
    return [entry.name for entry in source.files() if entry.name.endswith(".npy")]


def _judge(source: Source, name: str, number: int, dtypes: Mapping[str, object]) -> tuple[FileRef, TensorMeta]:
    """Return file and tensor, after comparing what the header promises with the size of the file."""
    try:
        header = read_header(source, name)
    except IntegrityError as error:
        raise error.located(file=name) from None
    tensor, size, start = name.removesuffix(".npy"), source.size(name), len(header.raw)
    dtype = str(dtypes.get(tensor, ELEMENTS[header.descr]))
    if tensor in dtypes and STAND_INS.get(dtype) != header.descr:
        why = f"dtypes.json says {dtype}, the file {header.descr}"
        raise IntegrityError("LM-NPY-STAND-IN", "the elements of a file do not fit", where={"file": name}, why=why)
    stop = start + prod(header.shape) * itemsize(dtype)
    if stop != size:
        why = f"its header promises {stop} bytes, it has {size}"
        raise IntegrityError("LM-NPY-SIZE", "a file is truncated or too long", where={"file": name}, why=why)
    sha256 = hashlib.sha256(header.raw).hexdigest()
    return (
        FileRef(id=number, name=name, size=size, header_bytes=start, header_sha256=sha256),
        TensorMeta(name=tensor, dtype=dtype, shape=header.shape, file=number, start=start, stop=stop),
    )


def _document(source: Source, name: str) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one when there is no such file."""
    if name not in {entry.name for entry in source.files()}:
        return {}
    try:
        document = json.loads(source.read(name, 0, source.size(name)))
    except (ValueError, RecursionError) as error:
        raise IntegrityError("LM-NPY-JSON", f"{name} is malformed", where={"file": name}, why=str(error)) from None
    if not isinstance(document, dict):
        raise IntegrityError("LM-NPY-JSON", f"{name} is not a JSON object", where={"file": name})
    return document


def _sha256(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
