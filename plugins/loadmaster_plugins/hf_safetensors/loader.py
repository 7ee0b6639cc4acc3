"""The format loader: from a folder's names and headers to a checkpoint index, and back to a file in a worker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.findings import Match
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef, TensorMeta
from loadmaster_hookspecs.sources import RangeReader, Source
from loadmaster_plugins.hf_safetensors.catalog import Catalog, catalog
from loadmaster_plugins.hf_safetensors.documents import read_config, read_generation
from loadmaster_plugins.hf_safetensors.selection import Selection, select_with_index, select_without_index
from loadmaster_plugins.hf_safetensors.shard_index import read_index
from loadmaster_plugins.hf_safetensors.wording import count, fold


class HfSafetensors:
    """Reads Hugging Face model folders: one safetensors file, or shards with or without an index."""

    @property
    def name(self) -> str:
        """The format's name, as plans record it."""
        return "hf-safetensors"

    def detect(self, source: Source) -> Match | None:
        """Match by file names. Folders with only pickle files match weakly, so that their refusal says why."""
        files = catalog(source.files())
        if files.indexes:
            return Match(score=0.9, evidence=files.indexes[0])
        if files.tensor_files:
            return Match(score=0.9, evidence=fold(files.tensor_files))
        if files.pickles:
            return Match(score=0.1, evidence=f"only pickle files: {fold(files.pickles)}")
        return None

    def open(self, source: Source) -> CheckpointIndex:
        """Judge every file by its header and return the index; reads headers and JSON documents only.

        Raises IntegrityError for anything damaged, missing, ambiguous or hostile.
        """
        files = catalog(source.files())
        selection = _select(source, files)
        config = read_config(source, files)
        refs = _refs(selection)
        return CheckpointIndex(
            source=source.uri,
            format=self.name,
            files=refs,
            tensors=_tensors(selection, refs),
            config=config,
            generation=read_generation(source, files),
            ignored=(*files.ignored, *selection.ignored),
            findings=selection.findings,
            fingerprint=fingerprint(refs, config),
        )

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        """Open a file that `open` judged, after comparing its size and header with the index; the caller closes it.

        Raises IntegrityError when the file changed since.
        """
        size = source.size(file.name)
        if size != file.size:
            raise _changed(file, f"it had {file.size} bytes when the plan was made and has {size} now")
        reader = source.open(file.name)
        header = bytearray(file.header_bytes)
        done = reader.read_into(0, memoryview(header))
        if hashlib.sha256(header[:done]).hexdigest() != file.header_sha256:
            reader.close()
            raise _changed(file, "its header differs from the one the plan was made from")
        return reader


def fingerprint(files: Sequence[FileRef], config: dict[str, Any]) -> str:
    """Return the SHA-256 over names, sizes, headers and configuration: the same wherever the files lie."""
    rows = sorted([file.name, file.size, file.header_sha256] for file in files)
    canonical = json.dumps([rows, config], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _select(source: Source, files: Catalog) -> Selection:
    """Choose files and tensors, with the index when there is one. Raises IntegrityError when there is nothing to choose."""
    if index := files.index():
        return select_with_index(source, files, read_index(source, index))
    if files.tensor_files:
        selection = select_without_index(source, files)
        if selection.homes:
            return selection
    elif files.pickles:
        raise IntegrityError(
            "LM-FORMAT-PICKLE",
            f"the weights are stored as pickle only: {fold(files.pickles)}",
            where={"source": source.uri},
            why="pickle files are not read, because loading one can run any code that its author put into it",
            hints=(
                "use the model's safetensors files if its repository has them",
                "or convert them on a machine you can lose: torch.load(weights_only=True), then safetensors.torch.save_file",
            ),
        )
    raise IntegrityError(
        "LM-FORMAT-EMPTY",
        "the source holds no safetensors tensors",
        where={"source": source.uri},
        why=f"{count(len(files.names), 'file')}: {fold(sorted(files.names))}" if files.names else "it has no files",
    )


def _refs(selection: Selection) -> tuple[FileRef, ...]:
    return tuple(
        FileRef(
            id=number,
            name=file.name,
            size=file.size,
            header_bytes=file.header.nbytes,
            header_sha256=file.header.sha256,
        )
        for number, file in enumerate(selection.files)
    )


def _tensors(selection: Selection, refs: Sequence[FileRef]) -> dict[str, TensorMeta]:
    """Return the chosen tensors in file order."""
    return {
        tensor.name: TensorMeta(
            name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, file=ref.id, start=tensor.start, stop=tensor.stop
        )
        for ref, file in zip(refs, selection.files, strict=True)
        for tensor in file.header.tensors
        if selection.homes.get(tensor.name) == file.name
    }


def _changed(file: FileRef, why: str) -> IntegrityError:
    return IntegrityError(
        "LM-FILE-CHANGED",
        "a file is not the one that the plan was made from",
        where={"file": file.name},
        why=why,
        hints=("make the plan again",),
    )
