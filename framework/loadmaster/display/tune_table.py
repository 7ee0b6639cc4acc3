"""The readings of `loadmaster tune` as a table, with the choice below."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.display.columns import align, facts
from loadmaster.tuning.climb import Reading
from loadmaster.tuning.kept import Tuning


def render_tuning(tuning: Tuning, file: str) -> str:
    """Return one line per batch, what was chosen and why, and the file that keeps it."""
    rows = [["batch", "tokens/s", "gain", "step", "first token"], *map(_row, tuning.readings, [None, *tuning.readings])]
    choice = [("choice", f"max_running {tuning.max_running}: {tuning.why}"), ("kept", file)]
    return "\n".join([*align(rows, right=range(5)), "", *facts(choice)])


def _row(reading: Reading, before: Reading | None) -> Sequence[str]:
    return (
        str(reading.batch),
        f"{reading.tokens_per_second:.1f}",
        f"{reading.tokens_per_second / before.tokens_per_second - 1:+.0%}" if before else "",
        f"{reading.step_seconds * 1e3:.1f} ms",
        f"{reading.first_token_seconds:.2f} s",
    )
