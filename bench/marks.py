"""Results inside pages that people write: only what stands between two marks is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BEGIN: Final = "<!-- results: begin -->"
END: Final = "<!-- results: end -->"


def put_between_marks(page: Path, text: str) -> None:
    """Replace what stands between the marks of `page`. Raises ValueError when one of them is missing."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for results: the marks {BEGIN} and {END} are missing")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")
