"""Opening a checkpoint: the index of its files, its tensors' bytes, and the small files beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, Self

import msgspec

from loadmaster.host import PluginHost, PluginSelection
from loadmaster_engine.attribution import AttributedFormat
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.plugin_host import PluginHost as AnyHost
from loadmaster_engine.small_files import SmallFiles
from loadmaster_hookspecs.formats import CheckpointIndex

PIECE_BYTES: Final = 16 << 20
"""Bytes of a tensor that are in memory at a time while it is read, at most."""


def open_checkpoint(path: str | os.PathLike[str], *, selection: PluginSelection | None = None) -> Checkpoint:
    """Return the checkpoint at `path`, of any format that a plugin reads; only headers are read until pieces are asked for.

    Imports no torch. Raises IntegrityError for damaged files, UsageError for an address that no plugin can open.
    """
    return Checkpoint(PluginHost(selection), path)


def open_index(host: AnyHost, path: str | os.PathLike[str]) -> CheckpointIndex:
    """Return the index of the checkpoint at `path`, from headers alone. Raises IntegrityError for damaged files."""
    return Checkpoint(host, path).index


class Checkpoint:
    """An open checkpoint: its `index`, and the bytes of its tensors through its own format's readers.

    Use it as a context manager, by one thread at a time: leaving it closes the files.
    """

    def __init__(self, host: AnyHost, path: str | os.PathLike[str]) -> None:
        source = host.open_source(os.fspath(path))
        loader = AttributedFormat(host, host.detect_format(source))
        self.index = msgspec.structs.replace(loader.open(source), bytes_read=source.bytes_read)
        self._files = FileSet(self.index, source, loader)
        self._beside = SmallFiles(source)

    def pieces(self, tensor: str) -> Iterator[memoryview]:
        """Yield the stored bytes of a tensor in order, at most `PIECE_BYTES` at a time; a piece is good until the next one.

        Raises KeyError for an unknown tensor, IntegrityError when its file is not the one that was indexed, and OSError as the
        operating system reports it.
        """
        meta = self.index.tensors[tensor]
        memory = memoryview(bytearray(min(PIECE_BYTES, meta.nbytes)))
        for start in range(meta.start, meta.stop, PIECE_BYTES):
            piece = memory[: min(PIECE_BYTES, meta.stop - start)]
            self._files.read_into(meta.file, start, piece)
            yield piece

    def file(self, name: str) -> bytes | None:
        """Return the content of a small file beside the weights, or None when there is no such file."""
        return self._beside(name)

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
