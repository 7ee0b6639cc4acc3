"""Keeps file names inside the model folder.

Hugging Face's hub cache stores a snapshot as links: `models--org--name/snapshots/<revision>/config.json` points to
`../../blobs/<hash>`. Such links leave the folder on purpose, so that one `blobs` folder is the only place outside it that a
link may lead to.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from loadmaster_hookspecs.errors import IntegrityError


class Folder(msgspec.Struct, frozen=True):
    """A model folder: the path as given, and the real paths that its files may resolve into."""

    path: Path
    roots: tuple[Path, ...]


def open_folder(path: Path) -> Folder:
    """Return the folder with the places its files may lie in. `path` must exist."""
    real = Path(os.path.realpath(path))
    blobs = _hub_blobs(real)
    return Folder(path, (real, blobs) if blobs else (real,))


def resolve(folder: Folder, name: str) -> Path:
    """Return the real path of a file of the folder, links followed.

    Raises IntegrityError for a name that leaves the folder, a link that leads out of it or nowhere, and a missing file.
    """
    check_name(name)
    path = folder.path / name
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        raise _unreachable(folder, name, error) from None
    if not any(real.is_relative_to(root) for root in folder.roots):
        raise IntegrityError(
            "LM-LINK-OUTSIDE",
            "a link leads out of the model folder",
            where={"file": str(path), "target": str(real)},
            why=f"files may lie in {' or '.join(map(str, folder.roots))} only",
            hints=("copy the file into the folder if you trust it",),
        )
    return real


def check_name(name: str) -> None:
    """Raise IntegrityError unless `name` is a relative path without `..`, `.` or empty parts."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise IntegrityError(
            "LM-NAME-OUTSIDE",
            "a file name leaves the model folder",
            where={"file": repr(name)},
            hints=("names are relative to the folder, with '/' and without '..'",),
        )


def _hub_blobs(snapshot: Path) -> Path | None:
    """Return the blob folder that belongs to a snapshot folder of the hub cache, or None for any other folder."""
    repository = snapshot.parent.parent
    if snapshot.parent.name != "snapshots" or not repository.name.startswith("models--"):
        return None
    return Path(os.path.realpath(repository / "blobs"))


def _unreachable(folder: Folder, name: str, error: OSError) -> IntegrityError:
    """Explain why a path cannot be resolved: a link that leads nowhere, or no such file."""
    path = folder.path / name
    link = next((step for step in _steps(folder.path, name) if step.is_symlink() and not step.exists()), None)
    if link is None:
        return IntegrityError(
            "LM-FILE-MISSING",
            "a file is missing or cannot be reached",
            where={"file": str(path)},
            why=error.strerror or str(error),
        )
    target = os.path.normpath(link.parent / os.readlink(link))
    return IntegrityError(
        "LM-LINK-DANGLING",
        "a link points to a file that does not exist",
        where={"link": str(link), "target": target},
        why="a hub-cache snapshot is links into a blobs folder; copying or cleaning the cache without it leaves them dangling",
        hints=("download the model again, or copy the folder with links followed (cp -rL)",),
    )


def _steps(folder: Path, name: str) -> list[Path]:
    """Return the path of every folder and file on the way to `name`."""
    parts = name.split("/")
    return [folder.joinpath(*parts[: depth + 1]) for depth in range(len(parts))]
