"""The files of a plan or an index, opened on one rank: checked when they are opened, counted always."""

from __future__ import annotations

from collections.abc import Callable

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.formats import CheckpointIndex, FormatLoader
from loadmaster_hookspecs.plan import LoadPlan
from loadmaster_hookspecs.sources import RangeReader, Source

OPEN_FILES = 128
"""Files of one rank that are open at a time, at most: a format may have a file per tensor, and a process a limit of 1024."""


class FileSet:
    """Readers of the files that a rank needs, opened on first use. Owns them until `close`, or until others are needed more.

    `by_call` counts the bytes that came through read calls; `mapped` those copied out of the shared mapping.
    """

    def __init__(self, plan: LoadPlan | CheckpointIndex, source: Source, loader: FormatLoader) -> None:
        self._files = plan.files
        self._open: Callable[[int], RangeReader] = lambda file: loader.reader(source, plan.files[file])
        self._readers: dict[int, RangeReader] = {}
        self._mappings: dict[int, memoryview] = {}
        self.by_call = 0
        self.mapped = 0

    def name(self, file: int) -> str:
        """Return the name of a file of the plan."""
        return self._files[file].name

    def read_into(self, file: int, offset: int, view: memoryview) -> None:
        """Fill `view` from byte `offset` of a file. Raises IntegrityError LM-FILE-TRUNCATED when the file ends early."""
        got = self._reader(file).read_into(offset, view)
        self.by_call += got
        if got != len(view):
            raise IntegrityError(
                "LM-FILE-TRUNCATED",
                "a file ended while it was read",
                where={"file": self.name(file), "offset": offset},
                why=f"{len(view)} bytes were planned from there, {got} came",
                hints=["the file was changed after planning: fetch it again and load again"],
            )

    def mapping(self, file: int) -> memoryview | None:
        """Return a file's shared mapping, or None where its source has none. Good until the next call of this object."""
        if file not in self._mappings:
            view = self._reader(file).mapping()
            if view is None:
                return None
            self._mappings[file] = view
        return self._mappings[file]

    def close(self) -> None:
        """Close every reader and release the mappings."""
        for file in tuple(self._readers):
            self._close(file)

    def _close(self, file: int) -> None:
        self._mappings.pop(file, None)
        self._readers.pop(file).close()

    def _reader(self, file: int) -> RangeReader:
        if file not in self._readers:
            if len(self._readers) >= OPEN_FILES:
                self._close(next(iter(self._readers)))  # reads go through the files in order: the oldest is done with
            self._readers[file] = self._open(file)
        return self._readers[file]
