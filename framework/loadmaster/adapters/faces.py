"""The adapters of an engine as users see them: calls that wait, and calls for an event loop."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from typing import Final, TypeVar

from loadmaster.adapters.info import AdapterInfo
from loadmaster.adapters.manager import AdapterManager
from loadmaster_hookspecs.errors import ResourceError

LOAD_SECONDS: Final = 3600.0
"""Seconds that a load may wait for others and take."""

UNLOAD_SECONDS: Final = 600.0
"""Seconds that an unload waits for those that use the adapter, without another limit."""

T = TypeVar("T")
Path = str | os.PathLike[str]


class Adapters:
    """The adapters of an `Engine`. May be used from several threads; calls for one name take effect in their order."""

    def __init__(self, manager: AdapterManager) -> None:
        self._manager = manager

    def list(self) -> tuple[AdapterInfo, ...]:
        """Return the adapters that calls can name, in the order in which they were loaded."""
        return self._manager.infos()

    def load(self, name: str, path: Path, *, pinned: bool = False) -> AdapterInfo:
        """Load an adapter and let calls name it from now on.

        The same content under the same name is there already, and nothing happens. Other content takes the place of what had
        the name. Raises what makes the adapter impossible (UsageError, PlanError, IntegrityError, ResourceError), and changes
        nothing then.
        """
        return _result(self._manager.load(name, os.fspath(path), pinned=pinned), _late_load(name), LOAD_SECONDS)

    def unload(self, name: str, *, timeout: float = UNLOAD_SECONDS) -> int:
        """Let no more calls name an adapter, wait for those that use it, and return the bytes that were given back.

        Raises UsageError LM-USAGE-ADAPTER for an unknown name, and ResourceError LM-ADAPTER-BUSY after `timeout` seconds: the
        bytes are then given back when the last use ends.
        """
        return _result(self._manager.unload(name), _late_unload(name, timeout), timeout)

    def pin(self, name: str, pinned: bool = True) -> None:
        """Say that an adapter must not make room for others, or that it may. Raises UsageError for an unknown name."""
        self._manager.pin(name, pinned=pinned)


class AsyncAdapters:
    """The adapters of an `AsyncEngine` (`loadmaster.serving.types.ServingAdapters`). Requests go on while they come and go."""

    def __init__(self, manager: AdapterManager) -> None:
        self._manager = manager

    def list(self) -> tuple[AdapterInfo, ...]:
        """Return the adapters that requests can name, in the order in which they were loaded."""
        return self._manager.infos()

    async def load(self, name: str, path: Path, *, pinned: bool = False) -> AdapterInfo:
        """Load an adapter, as `Adapters.load` does. Breaking the wait off does not break the load off."""
        return await _waited(self._manager.load(name, os.fspath(path), pinned=pinned), _late_load(name), LOAD_SECONDS)

    async def unload(self, name: str, *, timeout: float = UNLOAD_SECONDS) -> int:
        """Unload an adapter, as `Adapters.unload` does."""
        return await _waited(self._manager.unload(name), _late_unload(name, timeout), timeout)

    def pin(self, name: str, pinned: bool = True) -> None:
        """Say that an adapter must not make room for others, or that it may. Raises UsageError for an unknown name."""
        self._manager.pin(name, pinned=pinned)


def _result(future: Future[T], late: ResourceError, timeout: float) -> T:
    try:
        return future.result(timeout)
    except TimeoutError:
        raise late from None


async def _waited(future: Future[T], late: ResourceError, timeout: float) -> T:
    """Wait without holding the future: others may wait for the same one."""
    try:
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), timeout)
    except TimeoutError:
        raise late from None


def _late_load(name: str) -> ResourceError:
    return ResourceError("LM-ENGINE-BUSY", f"adapter {name!r} was not loaded within {LOAD_SECONDS:.0f} s")


def _late_unload(name: str, timeout: float) -> ResourceError:
    return ResourceError(
        "LM-ADAPTER-BUSY",
        f"requests still use adapter {name!r} after {timeout:g} s",
        hints=["its bytes are given back when the last of them ends"],
    )
