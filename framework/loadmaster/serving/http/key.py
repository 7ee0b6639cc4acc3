"""The key that clients show, where the server has one."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from loadmaster.serving.http.errors import ApiError, ErrorDetail, error_response


class KeyCheck:
    """Lets requests with `Authorization: Bearer KEY` through to `app`, and all requests for `open_paths`.

    `key` is printable ASCII without spaces. What is compared are digests, in constant time: neither the key's characters nor
    its length can be timed.
    """

    def __init__(self, app: ASGIApp, key: str, open_paths: Collection[str]) -> None:
        self._app = app
        self._digest = _digest(key)
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in self._open_paths or self._fits(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        detail = ErrorDetail(
            message="a valid key is needed: send it as 'Authorization: Bearer KEY'",
            type="invalid_request_error",
            code="invalid_api_key",
        )
        await error_response(ApiError(401, detail, {"www-authenticate": "Bearer"}))(scope, receive, send)

    def _fits(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(_digest(key.strip()), self._digest)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("latin-1")).digest()  # the characters that Starlette makes of a header's bytes
