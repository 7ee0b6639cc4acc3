"""The zip archive of `torch.save`: where its members lie in the file. Members are stored as they are, never compressed."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from typing import Final, NamedTuple

from loadmaster_hookspecs.errors import IntegrityError

ReadAt = Callable[[int, int], bytes]
"""Returns up to so many bytes (second) from an offset (first) of a file on."""

MAGIC: Final = b"PK\x03\x04"
LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How files of torch before 1.6 begin: several pickles one after another."""

TAR: Final = (257, b"ustar")
LONGEST: Final = 32_000_000
"""Bytes that a member which is read at once may have: pickles of real adapters have a few hundred thousand."""

LONGEST_DIRECTORY: Final = 8_000_000
"""Bytes that the directory may have."""

LOCAL: Final = struct.Struct("<4s5H3I2H")
"""What stands before every member."""


class Member(NamedTuple):
    """A member's bytes in the file."""

    start: int
    size: int


class Archive:
    """A file's members by name, without the archive's own folder. Raises IntegrityError for what torch never writes."""

    def __init__(self, read: ReadAt, size: int) -> None:
        self._read, self._size = read, size
        _check_start(read, size)
        try:
            with zipfile.ZipFile(_Window(read, size)) as opened:
                entries = opened.infolist()
        except (zipfile.BadZipFile, struct.error, NotImplementedError, ValueError, OverflowError) as error:
            raise fault(f"its directory cannot be read: {error}") from None
        folder = entries[0].filename.partition("/")[0] if entries else ""
        self._entries = {entry.filename.removeprefix(f"{folder}/"): entry for entry in entries}
        if len(self._entries) != len(entries):
            raise fault("two of its members have one name")

    def names(self) -> list[str]:
        """Return the names of all members."""
        return list(self._entries)

    def member(self, name: str) -> Member:
        """Return where a member lies. Both its own header and the directory must say that it is not compressed."""
        entry = self._entries.get(name)
        if entry is None:
            raise fault(f"it has no member {name!r}")
        head = self._read(entry.header_offset, LOCAL.size) if 0 <= entry.header_offset < self._size else b""
        if len(head) < LOCAL.size or not head.startswith(MAGIC):
            raise fault(f"member {name!r} has no header at byte {entry.header_offset}")
        fields = LOCAL.unpack(head)
        if entry.compress_type or fields[3] or entry.compress_size != entry.file_size:
            raise fault(f"member {name!r} is compressed")
        if entry.flag_bits & 1:
            raise fault(f"member {name!r} is encrypted")
        start = entry.header_offset + LOCAL.size + fields[9] + fields[10]
        if start + entry.file_size > self._size:
            raise fault(f"member {name!r} ends at byte {start + entry.file_size} of a file of {self._size}")
        return Member(start, entry.file_size)

    def content(self, name: str) -> bytes:
        """Return a small member's bytes."""
        start, size = self.member(name)
        if size > LONGEST:
            raise fault(f"member {name!r} has {size} bytes; {LONGEST} are read")
        return self._read(start, size)


def fault(why: str) -> IntegrityError:
    """Return the error for an archive that is damaged or was not written by `torch.save`."""
    return IntegrityError(
        "LM-ARCHIVE-ZIP",
        "the file is not a sound archive of torch.save",
        why=why,
        hints=("download the file again, or save the adapter as safetensors",),
    )


def _check_start(read: ReadAt, size: int) -> None:
    """Raise IntegrityError for the formats of old versions of torch, by name, and for whatever is no zip archive."""
    start = read(0, 512)
    old = ""
    if start.startswith(LEGACY):
        old = "the format of torch before 1.6, several pickles one after another"
    elif start[TAR[0] :].startswith(TAR[1]):
        old = "the tar format of torch before 0.2"
    if old:
        raise IntegrityError(
            "LM-ARCHIVE-LEGACY",
            "the file has a format of torch that is not read",
            why=old,
            hints=("on a machine you can lose: torch.load(weights_only=True), then safetensors.torch.save_file",),
        )
    if not start.startswith(MAGIC):
        raise fault(f"it begins with {start[:16]!r}, and has {size} bytes")


class _Window(io.RawIOBase):
    """The file as zipfile reads it, refusing to take in more than a directory can have."""

    def __init__(self, read: ReadAt, size: int) -> None:
        self._read_at, self._size, self._at = read, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, self._size)[whence]
        if at < 0:
            raise ValueError("it points before the file")
        self._at = at
        return at

    def read(self, size: int | None = -1) -> bytes:
        rest = max(0, self._size - self._at)
        wanted = rest if size is None or size < 0 else min(size, rest)
        if wanted > LONGEST_DIRECTORY:
            raise ValueError(f"it has {wanted} bytes; {LONGEST_DIRECTORY} are read")
        data = self._read_at(self._at, wanted)
        self._at += len(data)
        return data
