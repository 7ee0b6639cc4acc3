"""The files of one local checkpoint: listed without opening any, read with a meter, opened with confinement checks."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from loadmaster_hookspecs.errors import IntegrityError, UsageError
from loadmaster_hookspecs.sources import FileEntry
from loadmaster_plugins.local_source.confine import Folder, open_folder, resolve
from loadmaster_plugins.local_source.reader import LocalReader

COMPANIONS: Final = (".json", ".jinja", ".model", ".txt")
"""Endings of the files that are listed beside a source of one single file: configuration and tokenizer, no weights."""


class LocalSource:
    """A model folder, or with `only` one file of it and the configuration beside it.

    Lists the top level alone: a checkpoint's files lie there, and sub-folders hold other copies, caches or version control.
    A file in a sub-folder can still be read by name, when an index names it.
    """

    def __init__(self, path: Path, only: str = "") -> None:
        self._folder = open_folder(path)
        self._only = only
        self._bytes_read = 0

    @property
    def uri(self) -> str:
        """The absolute path of the folder or file."""
        return str(self._folder.path / self._only)

    @property
    def bytes_read(self) -> int:
        """Bytes that `read` has returned so far."""
        return self._bytes_read

    def files(self) -> tuple[FileEntry, ...]:
        """Return the files of the top level, sorted by name.

        A link that cannot be followed is listed with size 0; reading it says why. Raises UsageError when the folder cannot be
        listed.
        """
        try:
            with os.scandir(self._folder.path) as entries:
                names = sorted(entry.name for entry in entries if self._listed(entry))
        except OSError as error:
            raise UsageError(
                "LM-SOURCE-UNREADABLE", "the model folder cannot be listed", where={"path": self.uri}, why=str(error.strerror)
            ) from None
        return tuple(FileEntry(name=name, size=self._size_or_zero(name)) for name in names)

    def size(self, name: str) -> int:
        """Return the bytes of a file. Raises IntegrityError as `open` does."""
        path = resolve(self._folder, name)
        with _explained(self._folder, name):
            status = os.stat(path)
        _check_regular(self._folder, name, status)
        return status.st_size

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset` on. Raises IntegrityError when the file cannot be read."""
        available = max(0, self.size(name) - offset)
        content = bytearray(min(size, available))
        with closing(self.open(name)) as reader, _explained(self._folder, name):
            done = reader.read_into(offset, memoryview(content))
        self._bytes_read += done
        return bytes(content[:done])

    def open(self, name: str) -> LocalReader:
        """Open a file for reading tensor bytes; the caller closes it. Raises IntegrityError when it cannot be opened."""
        path = resolve(self._folder, name)
        with _explained(self._folder, name):
            # O_NONBLOCK: a pipe in place of a file must not make anyone wait for its writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            _check_regular(self._folder, name, os.fstat(descriptor))
        except IntegrityError:
            os.close(descriptor)
            raise
        return LocalReader(descriptor)

    def _listed(self, entry: os.DirEntry[str]) -> bool:
        if self._only and entry.name != self._only and not _is_companion(entry.name):
            return False
        if not _is_text(entry.name):
            return False
        if entry.is_symlink():
            return not os.path.isdir(entry.path)
        return entry.is_file(follow_symlinks=False)

    def _size_or_zero(self, name: str) -> int:
        try:
            return self.size(name)
        except IntegrityError:
            return 0


def _is_companion(name: str) -> bool:
    return name.endswith(COMPANIONS) and not name.endswith(".index.json")


def _is_text(name: str) -> bool:
    """Whether a name is valid UTF-8; other names cannot be printed or sent to a worker, and no checkpoint uses them."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _check_regular(folder: Folder, name: str, status: os.stat_result) -> None:
    """Raise IntegrityError for pipes, devices and folders."""
    if not stat.S_ISREG(status.st_mode):
        mode = stat.filemode(status.st_mode)
        raise IntegrityError("LM-FILE-KIND", "not a regular file", where={"file": str(folder.path / name)}, why=mode)


@contextmanager
def _explained(folder: Folder, name: str) -> Iterator[None]:
    """Turn what the operating system reports into an IntegrityError that names the file."""
    try:
        yield
    except OSError as error:
        raise IntegrityError(
            "LM-FILE-UNREADABLE",
            "a file cannot be read",
            where={"file": str(folder.path / name)},
            why=error.strerror or str(error),
        ) from None
