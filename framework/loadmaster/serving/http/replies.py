"""Records as the bodies of responses."""

from __future__ import annotations

import msgspec
from starlette.responses import Response


def json_reply(record: msgspec.Struct, status: int = 200) -> Response:
    """Return the response whose body is `record` as JSON."""
    return Response(msgspec.json.encode(record), status, media_type="application/json")
