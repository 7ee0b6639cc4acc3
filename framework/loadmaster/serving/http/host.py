"""The names under which the server may be addressed, where it has to rely on who can reach it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from loadmaster.serving.http.errors import bad_request, error_response

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
"""What clients on this machine call it."""


class HostCheck:
    """Lets requests through to `app` whose `Host` is one of `hosts`, whatever the port.

    A web page can make its own name lead to a loopback address, and its requests then count as being to its own site. They
    still carry that name.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or _name(Headers(scope=scope).get("host", "")) in self._hosts:
            await self._app(scope, receive, send)
            return
        message = f"without a key this server answers under {', '.join(sorted(self._hosts))} only"
        await error_response(bad_request(message, None, "unknown_host", status=421))(scope, receive, send)


def _name(host: str) -> str:
    """Return the value of a `Host` header without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()
