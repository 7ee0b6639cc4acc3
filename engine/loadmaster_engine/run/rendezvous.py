"""How the processes of one model find each other: `auto`, `tcp://host:port`, `env://` or `file:///path`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from loadmaster_hookspecs.errors import UsageError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import FileStore, TCPStore

RENDEZVOUS_TIMEOUT = 60.0
"""Seconds that a rank waits for the others to appear."""

LOOPBACK = "127.0.0.1"

IN_MEMORY = "file:///proc/"
"""How the address of a store in a process's memory begins."""


def check_init_method(method: str, environ: Mapping[str, str], world_size: int) -> None:
    """Raise one UsageError LM-USAGE-RENDEZVOUS that lists everything that is wrong with an init method."""
    problems = _problems(method, environ, world_size)
    if problems:
        raise UsageError(
            "LM-USAGE-RENDEZVOUS",
            f"distributed_init_method {method!r} cannot be used",
            why="; ".join(problems),
            hints=["use auto on one machine", "forms: auto, tcp://HOST:PORT, env://, file:///PATH"],
        )


def _problems(method: str, environ: Mapping[str, str], world_size: int) -> list[str]:
    if method == "auto":
        return []
    if method == "env://":
        return _environment_problems(environ, world_size)
    parts = urlsplit(method)
    if parts.scheme == "tcp":
        return [
            *([] if parts.hostname else ["the host is missing"]),
            *_port_problems("the port", parts.netloc.rpartition(":")[2]),
        ]
    if parts.scheme == "file":
        return _file_problems(Path(parts.path))
    return ["the form is not known"]


def _file_problems(path: Path) -> list[str]:
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        return [f"folder {path.parent} does not exist or cannot be written"]
    if path.exists() and (not path.is_file() or path.stat().st_size):
        return [f"{path} exists already: ranks would take what an earlier meeting left in it for their own"]
    return []


def _environment_problems(environ: Mapping[str, str], world_size: int) -> list[str]:
    problems = [f"{name} is not set" for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if environ.get("MASTER_PORT"):
        problems += _port_problems("MASTER_PORT", environ["MASTER_PORT"])
    if environ.get("WORLD_SIZE") and environ["WORLD_SIZE"] != str(world_size):
        problems.append(f"WORLD_SIZE is {environ['WORLD_SIZE']!r}, the plan has {world_size} ranks")
    if environ.get("RANK") and environ["RANK"] != "0":
        problems.append(f"RANK is {environ['RANK']!r}, the process that starts all ranks of a node must be rank 0")
    return problems


def _port_problems(name: str, value: str) -> list[str]:
    valid = value.isdigit() and 0 < int(value) < 1 << 16
    return [] if valid else [f"{name} is {value!r}, not a port number from 1 to 65535"]


class MeetingFile:
    """The file that an init method `file://` names, so that it can be left as it was found; nothing for other methods.

    Make it before ranks meet, in the process that outlives them.
    """

    def __init__(self, method: str) -> None:
        self._path = Path(urlsplit(method).path) if method.startswith("file://") else None
        self._found = self._path is not None and self._path.exists()

    def clear(self) -> None:
        """Remove the file, or empty it when it was there before. The ranks must have ended. Safe to call twice.

        A file that is gone already, or may no longer be written, is left alone: the model does not depend on it.
        """
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            if self._found:
                os.truncate(self._path, 0)
            else:
                self._path.unlink()


def memory_address() -> str:
    """Return the `file://` address of a store in this process's memory, for processes of the same user on this machine.

    No socket: torch's own store would listen on every interface and ask the name service about each peer. The memory goes
    when this process ends.
    """
    return f"{IN_MEMORY}{os.getpid()}/fd/{os.memfd_create('loadmaster-meeting', os.MFD_CLOEXEC)}"


def open_store(method: str, environ: Mapping[str, str], rank: int, world_size: int) -> TCPStore | FileStore:
    """Return the key-value store through which ranks meet. `auto` becomes an address of its own first: `memory_address`."""
    from torch._C._distributed_c10d import FileStore, TCPStore

    timeout = timedelta(seconds=RENDEZVOUS_TIMEOUT)
    if method.startswith("file://"):
        return FileStore(urlsplit(method).path, world_size)
    if method == "env://":
        host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    else:
        parts = urlsplit(method)
        host, port = parts.hostname or LOOPBACK, parts.port or 0
    return TCPStore(host, port, world_size, is_master=rank == 0, timeout=timeout, wait_for_workers=False)
