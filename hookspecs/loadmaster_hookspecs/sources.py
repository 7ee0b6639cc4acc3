"""Where bytes live: a folder on this machine first; object stores and caches are further plugins."""

from __future__ import annotations

from typing import Protocol

import msgspec

from loadmaster_hookspecs.findings import Match


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a source: its name relative to the source (with `/`), and its size in bytes."""

    name: str
    size: int


class RangeReader(Protocol):
    """Random access to one file, held by one process and one thread at a time.

    The reader owns its descriptor until `close`, and its mapping until nobody holds a part of it any more.
    """

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill `view` (writable bytes) from byte `offset` of the file and return the bytes read.

        Fewer bytes than asked for mean that the file ends there; the caller decides whether that is an error.
        Raises OSError as the operating system reports it.
        """
        ...

    def mapping(self) -> memoryview | None:
        """Return the whole file as a view that shares the system's page cache, or None where files cannot be mapped.

        Readers never write to it. A view that is writable must be copy-on-write: writing changes this process's memory and
        never the file. Parameters can only be views of such a one, since tensors cannot be protected against writes.
        """
        ...

    def close(self) -> None:
        """Release the descriptor and the mapping. Safe to call twice."""
        ...


class Source(Protocol):
    """A place that holds the files of one checkpoint. Listing it opens no file; reading from it is metered."""

    @property
    def uri(self) -> str:
        """The address that opens this source again in another process."""
        ...

    @property
    def bytes_read(self) -> int:
        """Bytes returned by `read` so far: what planning cost in input."""
        ...

    def files(self) -> tuple[FileEntry, ...]:
        """Return the files, sorted by name. Names never leave the source: no absolute path and no `..`."""
        ...

    def size(self, name: str) -> int:
        """Return the bytes of a file, also of one that `files` does not list (in a sub-folder that an index names).

        Raises IntegrityError when the file does not exist or lies outside the source.
        """
        ...

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of a file from `offset` on: headers, configuration, small files.

        Raises IntegrityError when the file does not exist, cannot be read, or lies outside the source.
        """
        ...

    def open(self, name: str) -> RangeReader:
        """Open a file for reading tensor bytes. The caller closes the reader. Several threads may call this at once."""
        ...


class SourceProvider(Protocol):
    """Opens addresses of one kind. Returned by the `loadmaster_sources` hook."""

    @property
    def name(self) -> str:
        """Unique name of this kind of source, for example `local`."""
        ...

    def claim(self, uri: str) -> Match | None:
        """Return how well this provider fits the address, or None. Touches the file system at most, never a network."""
        ...

    def open(self, uri: str) -> Source:
        """Open the source. Raises LoadmasterError when it does not exist or cannot be listed."""
        ...
