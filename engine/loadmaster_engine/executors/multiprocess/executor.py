"""The factory of the multiprocess executor, and the workplace whose groups share one fork server."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from loadmaster_engine.executors.failure import not_prepared
from loadmaster_engine.executors.group import GroupExecutor, RankGroup, Workplace
from loadmaster_engine.executors.multiprocess.crew import Crew
from loadmaster_engine.executors.multiprocess.server import Server
from loadmaster_hookspecs.executors import EventSink, Executor, WorkerSpec


class MultiprocessFactory:
    """Makes executors that run every rank in a process of its own."""

    name = "multiprocess"
    separate_processes = True

    def create(self, *, preload: Sequence[str], on_event: EventSink) -> Executor:
        """Make an executor. Its fork server starts, and imports the `preload` modules, with `prepare` or the first worker."""
        return GroupExecutor(self.name, ForkServerWorkplace(preload, on_event), on_event)


class ForkServerWorkplace:
    """Starts the fork server when it is first needed, and ends it with `close`, when forgotten, and at interpreter exit."""

    def __init__(self, preload: Sequence[str], on_event: EventSink) -> None:
        self._preload = tuple(preload)
        self._on_event = on_event
        self._server: Server | None = None
        self._kill: weakref.finalize[[], ForkServerWorkplace] | None = None

    def prepare(self) -> None:
        """Start the fork server, which imports the preload modules by itself."""
        self._running()

    def group(self, specs: Sequence[WorkerSpec]) -> RankGroup:
        """Return a crew of one worker per spec, not yet started."""
        return Crew(self._running(), specs, self._on_event)

    def beside(self, on_event: EventSink) -> Workplace:
        """Return a workplace for groups from the same fork server."""
        return BesideWorkplace(weakref.ref(self), on_event)

    @property
    def server(self) -> Server | None:
        """The fork server, None before `prepare` and after `close`."""
        return self._server

    def _running(self) -> Server:
        if self._server is None or self._server.ended:
            self._server = Server(self._preload)
            self._kill = weakref.finalize(self, self._server.kill)
        return self._server

    def close(self) -> None:
        """Kill the fork server and all that runs in its session."""
        if self._kill is not None:
            self._kill()
        self._server = self._kill = None


class BesideWorkplace:
    """Has its groups forked from the server of another workplace, also on another thread, and leaves that server alone."""

    def __init__(self, owner: weakref.ref[ForkServerWorkplace], on_event: EventSink) -> None:
        self._owner = owner  # weak: a server ends when its own workplace is forgotten
        self._on_event = on_event

    def prepare(self) -> None:
        """Do nothing: the owner of the server has begun what takes long."""

    def group(self, specs: Sequence[WorkerSpec]) -> RankGroup:
        """Return a crew of one worker per spec, not yet started. Raises UsageError when no server runs."""
        owner = self._owner()
        server = owner.server if owner is not None else None
        if server is None:
            raise not_prepared()
        return Crew(server, specs, self._on_event)

    def beside(self, on_event: EventSink) -> Workplace:
        """Return another workplace like this one."""
        return BesideWorkplace(self._owner, on_event)

    def close(self) -> None:
        """Do nothing: the server is not its own."""
