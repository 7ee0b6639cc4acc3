"""The server process: uvicorn around the application, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import uvicorn

from loadmaster.serving.http.app import make_app
from loadmaster.serving.http.gate import Gate
from loadmaster.serving.http.monitor import Monitor
from loadmaster.serving.http.settings import ServerSettings
from loadmaster.serving.types import ServingEngine

FLUSH_SECONDS = 5
"""What connections get to send the end of their answers, after the last answer is made."""

STATS_SECONDS = 30
"""How often the engine's statistics are read when nobody asks: it keeps times to first token until they are."""

POLL_SECONDS = 0.1
"""How often a second interrupt is looked for while running requests are waited for."""


class DrainingServer(uvicorn.Server):
    """A uvicorn server that, asked to stop, answers 503 to new requests until the running ones have ended."""

    def __init__(self, engine: ServingEngine, settings: ServerSettings, on_start: Callable[[], None]) -> None:
        self._gate = Gate()
        self._monitor = Monitor(engine)
        self._engine = engine
        self._seconds = settings.drain_seconds
        self._on_start = on_start
        self._closed = False
        super().__init__(
            uvicorn.Config(
                make_app(engine, settings, self._gate, self._monitor),
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=FLUSH_SECONDS,
                callback_notify=self._take_stats,
                timeout_notify=STATS_SECONDS,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, then say so."""
        await super().startup(sockets)
        self._on_start()

    async def main_loop(self) -> None:
        """Serve until asked to stop, then let running requests end: all of them, or until time or patience is up.

        The engine ends here, before connections are closed, so that requests which were cut off are told.
        """
        await super().main_loop()
        await self._drain()
        await self.close_engine()

    async def close_engine(self) -> None:
        """Close the engine, the first time."""
        if not self._closed:
            self._closed = True
            await self._engine.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM as the wish to stop, as uvicorn does, but do not raise them again: a drained end is one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _take_stats(self) -> None:
        self._monitor.read()

    async def _drain(self) -> None:
        end = time.monotonic() + self._seconds
        waiting = asyncio.create_task(self._gate.close(self._seconds))
        try:
            while not waiting.done() and not self.force_exit:
                await asyncio.wait({waiting}, timeout=POLL_SECONDS)
        finally:
            waiting.cancel()
        await self._engine.drain(0.0 if self.force_exit else max(0.0, end - time.monotonic()))


async def serve(
    engine: ServingEngine, settings: ServerSettings, listening: socket.socket, on_start: Callable[[], None]
) -> None:
    """Serve on a bound socket until SIGINT or SIGTERM, then drain and close the engine. A second SIGINT stops at once.

    `on_start` is called when connections are accepted. Owns engine and socket from here on.
    """
    server = DrainingServer(engine, settings, on_start)
    try:
        await server.serve([listening])
    finally:
        listening.close()
        await server.close_engine()
