"""Which folders a client may name: those inside one folder that the operator chose, after all links are followed."""

from __future__ import annotations

import os

from loadmaster.serving.http.errors import ApiError, bad_request


def find_adapter(folder: str, path: str) -> str:
    """Return the real path of the adapter at `path`, which is absolute or relative to `folder`. Looks at the file system.

    Raises ApiError 403 when it, or a file in it, lies outside of `folder`, and 400 when there is no such folder.
    """
    allowed = os.path.realpath(folder)
    try:
        found = os.path.realpath(os.path.join(allowed, path))
    except ValueError:  # a zero byte
        raise _missing(path) from None
    if not _inside(found, allowed):
        raise _outside(path)
    try:
        names = os.listdir(found)
    except OSError:
        raise _missing(path) from None
    for name in names:
        if not _inside(os.path.realpath(os.path.join(found, name)), allowed):
            raise _outside(f"{path}/{name}")
    return found


def without_folder(message: str, folder: str) -> str:
    """Return a message for clients: paths in it begin at `folder`, since where that lies is not their concern."""
    return message.replace(f"{os.path.realpath(folder)}{os.sep}", "")


def _inside(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder


def _outside(path: str) -> ApiError:
    message = f"{path!r} is not inside the folder that adapters are loaded from; it is the server's --adapter-folder"
    return bad_request(message, "lora_path", "path_not_allowed", status=403)


def _missing(path: str) -> ApiError:
    message = f"there is no folder that can be read at {path!r} in the folder that adapters are loaded from"
    return bad_request(message, "lora_path", "invalid_value")
