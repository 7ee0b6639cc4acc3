"""Git-LFS pointers: the few lines of text that stand in for a large file until `git lfs pull` fetches it."""

from __future__ import annotations

import re
from typing import Final

from loadmaster_hookspecs.errors import IntegrityError

SIGNATURE: Final = b"version https://git-lfs.github.com/spec/"
LONGEST_POINTER: Final = 1024
"""Bytes that a pointer has at most, by its specification."""

_SIZE: Final = re.compile(rb"^size (\d{1,20})$", re.MULTILINE)


def may_be_pointer(start: bytes) -> bool:
    """Whether a file that begins with `start` (any number of bytes) can be a pointer."""
    return bool(start) and (start.startswith(SIGNATURE) or SIGNATURE.startswith(start))


def pointer_error(text: bytes, size: int) -> IntegrityError | None:
    """Return the error for a file of `size` bytes whose first kilobyte is `text`, or None when it is no pointer."""
    if not text.startswith(SIGNATURE):
        return None
    promised = _SIZE.search(text)
    stands_for = f"a file of {int(promised[1])} bytes" if promised else "another file"
    return IntegrityError(
        "LM-FILE-LFS-POINTER",
        "the file is a Git-LFS pointer, not the file itself",
        why=f"its {size} bytes are text that stands for {stands_for}",
        hints=("in the repository folder run: git lfs install && git lfs pull", "or download the model with: hf download NAME"),
    )
