"""Reading a request's body: JSON only, of limited size, in limited time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from loadmaster.serving.http.disconnect import ClientGone
from loadmaster.serving.http.errors import bad_request
from loadmaster.serving.http.settings import ServerSettings


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """Return the body. Raises ApiError 415 for another content type, 413 for too many bytes, 408 for too slow a client.

    Browsers send JSON to other sites only after these have agreed, so the content type keeps web pages away from a server on
    loopback that asks for no key.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"the content type must be application/json, not {kind or 'missing'}"
        raise bad_request(message, None, "unsupported_media_type", status=415)
    try:
        async with asyncio.timeout(settings.body_seconds):
            return await _read(request, settings.max_body_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {settings.body_seconds:g} seconds"
        raise bad_request(message, None, "request_timeout", status=408) from None
    except ClientDisconnect:
        raise ClientGone from None


async def _read(request: Request, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            message = f"the body is larger than the {limit} bytes that this server accepts"
            raise bad_request(message, None, "request_too_large", status=413)
        pieces.append(piece)
    return b"".join(pieces)
