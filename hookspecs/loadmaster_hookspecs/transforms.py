"""Named, versioned computations between a file's bytes and a parameter's bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Transform(Protocol):
    """Turns dense source bytes into dense destination bytes, a bounded chunk at a time, in the worker.

    Returned by the `loadmaster_transforms` hook. A plan refers to it by name and version only.
    """

    @property
    def name(self) -> str:
        """Unique name, for example `cast`."""
        ...

    @property
    def version(self) -> int:
        """Version of the meaning: it grows when the same arguments would give other bytes."""
        ...

    def granule(self, args: Mapping[str, str | int]) -> tuple[int, int]:
        """Return the smallest (source, destination) bytes that can be transformed alone; chunks are multiples of them."""
        ...

    def apply(self, source: memoryview, dest: memoryview, args: Mapping[str, str | int]) -> Mapping[str, int]:
        """Fill `dest` from `source` (both dense bytes) and return counters, for example `{"overflow": 3}`.

        Neither view may be kept after the call.
        """
        ...
