"""A server on a real socket, on a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from openai import OpenAI

from fake_serving import FakeServingEngine
from loadmaster.serving.http.listening import base_url, bind
from loadmaster.serving.http.server import DrainingServer
from loadmaster.serving.http.settings import ServerSettings

MODEL = "tiny"


class Live(NamedTuple):
    """A running server: where it is, what it runs on, and how it is told to stop."""

    url: str
    engine: FakeServingEngine
    server: DrainingServer
    thread: threading.Thread

    @property
    def root(self) -> str:
        """The address without the `/v1` of the API."""
        return self.url.removesuffix("/v1")

    def stop(self) -> None:
        """Ask the server to stop, as a signal does."""
        self.server.should_exit = True


@contextmanager
def live_server(engine: FakeServingEngine | None = None, **settings: Any) -> Iterator[Live]:
    """Run a server for the length of a block; leaving it stops the server and waits for its end."""
    engine = engine or FakeServingEngine()
    started = threading.Event()
    server = DrainingServer(engine, ServerSettings(models=(MODEL,), **settings), started.set)
    with bind("127.0.0.1", 0, unread_seconds=settings.get("send_seconds", 60)) as listening:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
        thread.start()
        assert started.wait(10), "the server did not start"
        live = Live(base_url(listening), engine, server, thread)
        try:
            yield live
        finally:
            live.stop()
            thread.join(15)
            assert not thread.is_alive(), "the server did not stop"


@contextmanager
def client_of(live: Live, key: str = "unused") -> Iterator[OpenAI]:
    """Give an official client that does not repeat what fails."""
    with OpenAI(base_url=live.url, api_key=key, max_retries=0, timeout=20) as client:
        yield client


def eventually(holds: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Return whether something becomes true in time."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()
