"""The files of a plan or an index, opened on one rank: checked when they are opened, counted always."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING

from loadmaster_hookspecs.errors import IntegrityError, ResourceError
from loadmaster_hookspecs.formats import CheckpointIndex, FormatLoader
from loadmaster_hookspecs.plan import AdapterPlan, LoadPlan, Region
from loadmaster_hookspecs.sources import RangeReader, Source

if TYPE_CHECKING:
    from loadmaster_engine.load.regions import Bytes

OPEN_FILES = 32
"""Files of one set that are open at a time, at most: a format may have a file per tensor, a process a limit of 1024, and a
rank a set per reading thread."""

OVERREAD_GAP = 1 << 20
"""Bytes between two runs that are read along, at most: a read call of a slow storage costs more than they do."""


class FileSet:
    """Readers of the files that one thread of a rank needs, opened on first use. Owns them until `close`, or until others are
    needed more.

    `by_call` counts the bytes that came through read calls; `mapped` those copied out of the shared mapping.
    """

    def __init__(self, plan: LoadPlan | AdapterPlan | CheckpointIndex, source: Source, loader: FormatLoader) -> None:
        self._files = plan.files
        self._open: Callable[[int], RangeReader] = lambda file: loader.reader(source, plan.files[file])
        self._readers: dict[int, RangeReader] = {}
        self._mappings: dict[int, memoryview] = {}
        self.by_call = 0
        self.mapped = 0

    def sibling(self) -> FileSet:
        """Return an empty set of the same files for another thread; its counts are added with `merge`."""
        twin = copy(self)
        twin._readers, twin._mappings, twin.by_call, twin.mapped = {}, {}, 0, 0
        return twin

    def merge(self, other: FileSet) -> None:
        """Close a sibling and take over its counts."""
        other.close()
        self.by_call += other.by_call
        self.mapped += other.mapped

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

    @contextmanager
    def explained(self, file: int, offset: int) -> Iterator[None]:
        """Turn an error of the operating system into ResourceError LM-STORAGE-READ, which names the file."""
        try:
            yield
        except OSError as error:
            raise ResourceError(
                "LM-STORAGE-READ",
                "the storage reported an error",
                where={"file": self.name(file), "offset": offset},
                why=str(error),
                hints=["check the disk or network storage, then load again"],
            ) from error

    def mapping(self, file: int) -> memoryview | None:
        """Return a file's mapping, or None where its source cannot be mapped. Good until the next call of this object."""
        if file not in self._mappings:
            view = self._reader(file).mapping()
            if view is None:
                return None
            self._mappings[file] = view
        return self._mappings[file]

    def gather(self, file: int, source: Region, memory: memoryview, dest: Region, *, mapped: bool) -> None:
        """Copy strided runs of a file to `dest` of `memory`: out of its mapping if `mapped`, or out of ranges that cover them.

        Runs that lie at most `OVERREAD_GAP` bytes apart are read together. A file that has no mapping is always read.
        """
        import numpy as np  # here, because formats are read through this module without it

        from loadmaster_engine.load.regions import as_array, clusters

        if mapped and self.mapping(file) is not None:
            np.copyto(as_array(memory, dest), self.part(file, source))
            self.mapped += source.nbytes
            return
        for part, place in clusters(source, dest, OVERREAD_GAP):
            covering = memoryview(bytearray(part.end - part.offset))
            self.read_into(file, part.offset, covering)
            np.copyto(as_array(memory, place), as_array(covering, Region(0, part.run, part.steps)))

    def whole(self, file: int) -> Bytes:
        """Return a file's whole mapping as an array that keeps it alive, also after `close`."""
        return self.part(file, Region(0, self._files[file].size))

    def part(self, file: int, region: Region) -> Bytes:
        """Return `region` of a file's mapping as an array that keeps the mapping alive, also after `close`.

        Raises IntegrityError LM-FILE-TRUNCATED when the file is shorter, and LM-FILE-UNMAPPED when it cannot be mapped.
        """
        from loadmaster_engine.load.regions import as_array

        mapping = self.mapping(file)
        if mapping is None:
            raise IntegrityError(
                "LM-FILE-UNMAPPED",
                "a file cannot be mapped",
                where={"file": self.name(file)},
                why="the plan was made from a source that can map its files",
                hints=["make the plan again from this source"],
            )
        if region.end > len(mapping):
            raise IntegrityError(
                "LM-FILE-TRUNCATED",
                "a file is shorter than the plan says",
                where={"file": self.name(file), "offset": region.offset},
                why=f"planned up to byte {region.end}, the file has {len(mapping)}",
            )
        return as_array(mapping, region)

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
