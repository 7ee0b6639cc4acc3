"""Who may come in: counts the requests that are being answered, and lets no more in once the server is to stop."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from loadmaster.serving.http.errors import error_response, unavailable


class Gate:
    """The state that the app and the server share. All methods are called on one event loop."""

    def __init__(self) -> None:
        self._inside = 0
        self._closing = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def closing(self) -> bool:
        """Whether new requests are refused."""
        return self._closing

    @property
    def inside(self) -> int:
        """How many requests are being answered."""
        return self._inside

    async def close(self, seconds: float) -> bool:
        """Refuse new requests and wait until those inside are answered, at most `seconds`. Return whether they were."""
        self._closing = True
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def enter(self) -> None:
        """Count a request in."""
        self._inside += 1
        self._empty.clear()

    def leave(self) -> None:
        """Count a request out."""
        self._inside -= 1
        if not self._inside:
            self._empty.set()


class Gated:
    """Sends requests that generate through the gate, from their first byte to the last one of the answer."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if self._gate.closing:
            await error_response(unavailable("the server is shutting down", "shutting_down"))(scope, receive, send)
            return
        self._gate.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            self._gate.leave()
