"""Results of tuning, kept as JSON in the user's cache folder: one file per plan, good on the kind of machine that wrote it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from loadmaster.machine import accelerators, processor
from loadmaster.tuning.climb import Reading
from loadmaster_hookspecs.errors import ResourceError
from loadmaster_hookspecs.plan import LoadPlan

MOST_BYTES: Final = 1 << 20
"""A file that is larger was not written here."""

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a result holds: `cores` are those this process may use, `accelerators` those of a plan for such a device."""

    processor: str
    cores: int
    ranks: int
    accelerators: tuple[str, ...] = ()

    def __str__(self) -> str:
        devices = ", ".join(self.accelerators) or self.processor
        return f"{devices}, {self.cores} cores, {self.ranks} {'rank' if self.ranks == 1 else 'ranks'}"


class Tuning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a climb came to: `max_running` and why, with the readings, and what every request and step had.

    `digest` is the plan's, `day` the UTC date.
    """

    digest: str
    place: Place
    day: str
    max_running: Positive
    why: str
    prompt_tokens: int
    max_batch_tokens: int
    readings: tuple[Reading, ...]
    version: Literal[1] = 1


def place_of(plan: LoadPlan) -> Place:
    """Return where this process runs a plan."""
    return Place(
        processor=processor(),
        cores=len(os.sched_getaffinity(0)),
        ranks=len(plan.ranks),
        accelerators=() if plan.settings.device == "cpu" else accelerators(),
    )


def folder() -> Path:
    """Return where results are kept, whether it exists or not."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "loadmaster" / "tune"


def make_folder() -> None:
    """Create the folder. Raises ResourceError LM-TUNE-FOLDER, before anything is measured, where nothing can be kept."""
    with _refusing():
        folder().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder()).close()


def keep(tuning: Tuning) -> Path:
    """Write a result in place of an earlier one of the same plan, whole or not at all, and return the file.

    Raises ResourceError LM-TUNE-FOLDER when that is impossible.
    """
    path = folder() / f"{tuning.digest}.json"
    text = msgspec.json.format(msgspec.json.encode(tuning)) + b"\n"
    with _refusing(), tempfile.TemporaryDirectory(dir=folder()) as scratch:
        whole = Path(scratch) / path.name
        whole.write_bytes(text)
        whole.replace(path)
    return path


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceError(
            "LM-TUNE-FOLDER",
            "the result could not be kept",
            where={"folder": str(folder())},
            why=str(error.strerror),
            hints=["set XDG_CACHE_HOME to a folder that you may write to"],
        ) from error


def find(plan: LoadPlan) -> tuple[Tuning | None, str]:
    """Return what was found out for a plan on this machine, with a line for the user: what it says, or why it is not used.

    Without a file there is nothing to tell. Reads only, and raises nothing.
    """
    path = folder() / f"{plan.digest}.json"
    try:
        with path.open("rb") as stream:
            tuning = msgspec.json.decode(stream.read(MOST_BYTES), type=Tuning)
    except FileNotFoundError:
        return None, ""
    except (OSError, msgspec.MsgspecError) as error:
        return None, f"{path} is ignored: {error}"
    if tuning.digest != plan.digest:
        return None, f"{path} is ignored: it is about another plan"
    if tuning.place != (place := place_of(plan)):
        return None, f"{path} is ignored: tuned on {tuning.place}; this is {place}"
    return tuning, f"max_running {tuning.max_running}, as tuned on {tuning.day}"
