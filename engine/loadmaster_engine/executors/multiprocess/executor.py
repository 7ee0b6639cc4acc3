"""The factory of the multiprocess executor, and the workplace whose groups share one fork server."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from loadmaster_engine.executors.group import GroupExecutor, RankGroup
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
