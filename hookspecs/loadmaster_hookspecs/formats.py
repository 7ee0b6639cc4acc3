"""How tensors lie in files: the checkpoint index, and the loaders that make one from headers alone."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from loadmaster_hookspecs.findings import Finding, Ignored, Match
from loadmaster_hookspecs.sources import RangeReader, Source


class FileRef(msgspec.Struct, frozen=True, kw_only=True):
    """A file that holds tensors. `header_sha256` is what a worker checks before it reads a planned range."""

    id: int
    name: str
    size: int
    header_bytes: int
    header_sha256: str


class TensorMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stored tensor lies: bytes `start` to `stop` of file `file`, C order, element type as in `dtypes.BITS`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in its file."""
        return self.stop - self.start


class CheckpointIndex(msgspec.Struct, frozen=True, kw_only=True):
    """All that planning knows about a checkpoint: files, tensors and configuration; no tensor byte is read for it.

    `config` is the parsed `config.json`; `generation` the parsed `generation_config.json` or empty. `fingerprint` is the
    SHA-256 over file names, sizes, headers and configuration, so it is the same on every machine that holds the same files.
    `bytes_read` is what making the index took out of the source.
    """

    source: str
    format: str
    files: tuple[FileRef, ...]
    tensors: dict[str, TensorMeta]
    config: dict[str, Any]
    generation: dict[str, Any] = {}
    ignored: tuple[Ignored, ...] = ()
    findings: tuple[Finding, ...] = ()
    fingerprint: str
    bytes_read: int = 0


class FormatLoader(Protocol):
    """Understands one checkpoint format. Returned by the `loadmaster_formats` hook.

    A loader knows nothing of models, ranks, quantisation or adapters: it says where bytes are.
    """

    @property
    def name(self) -> str:
        """Unique name, for example `hf-safetensors`."""
        ...

    def detect(self, source: Source) -> Match | None:
        """Say whether the source holds this format, from names and a few header bytes. Must not raise for foreign files."""
        ...

    def open(self, source: Source) -> CheckpointIndex:
        """Read every header, judge every file, and return the index.

        Must not read tensor bytes. Raises IntegrityError naming the file for anything damaged, missing or hostile.
        """
        ...

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        """Open `file` for reading in a worker, after checking that it still is the file the index describes.

        Raises IntegrityError when size or header differ from the index.
        """
        ...
