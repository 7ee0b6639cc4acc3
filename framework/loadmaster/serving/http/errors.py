"""Errors in the shape of the OpenAI API: `{"error": {"message", "type", "param", "code"}}` and an HTTP status.

Source of shapes and codes: https://platform.openai.com/docs/guides/error-codes and the `openai` Python client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from loadmaster_hookspecs.errors import ErrorReport, LoadmasterError, ResourceError, UsageError


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: a sentence, the class of error, the field of the request it is about, and a stable code."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The JSON document of a response that is an error."""

    error: ErrorDetail


class ApiError(Exception):
    """An error that becomes a response: HTTP `status`, the `detail` of its body, and further `headers`."""

    def __init__(self, status: int, detail: ErrorDetail, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail.message)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


def bad_request(message: str, param: str | None, code: str, *, status: int = 400) -> ApiError:
    """Return the error for a request that is wrong in itself."""
    return ApiError(status, ErrorDetail(message=message, type="invalid_request_error", param=param, code=code))


def unavailable(message: str, code: str) -> ApiError:
    """Return the error for a server that cannot take or finish a request now."""
    return ApiError(503, ErrorDetail(message=message, type="server_error", code=code), {"retry-after": "5"})


def from_loadmaster(error: LoadmasterError) -> ApiError:
    """Return the response for one of our own errors.

    400 for wrong calls, 404 for an adapter that is not there (any more), 429 for a queue that is full, 503 for what else ran
    out, 500 for the rest.
    """
    message = sentence(error.report)
    if error.code == "LM-ENGINE-BUSY":
        detail = ErrorDetail(message=message, type="rate_limit_error", code=error.code)
        return ApiError(429, detail, {"retry-after": "1"})
    if isinstance(error, UsageError):
        return bad_request(message, None, error.code, status=404 if error.code == "LM-USAGE-ADAPTER" else 400)
    if isinstance(error, ResourceError):
        return unavailable(message, error.code)
    return ApiError(500, ErrorDetail(message=error.report.summary, type="server_error", code=error.code))


def sentence(report: ErrorReport) -> str:
    """Return summary, reason and hints of a report on one line."""
    text = f"{report.summary}: {report.why}" if report.why else report.summary
    return "; ".join((text, *report.hints))


def error_body(error: ApiError) -> bytes:
    """Return the JSON text of an error's body."""
    return msgspec.json.encode(ErrorBody(error.detail))


def error_response(error: ApiError) -> Response:
    """Return the response that tells a client about `error`."""
    return Response(error_body(error), error.status, error.headers, media_type="application/json")


async def on_api_error(_: Request, error: Exception) -> Response:
    """Answer for an `ApiError` or a `LoadmasterError` that an endpoint raised."""
    if isinstance(error, LoadmasterError):
        return error_response(from_loadmaster(error))
    if isinstance(error, ApiError):
        return error_response(error)
    raise error


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer for the router's own refusals: unknown paths and methods."""
    if not isinstance(error, HTTPException):
        raise error
    message = f"{error.detail}: {request.method} {request.url.path}"
    found = bad_request(message, None, _ROUTER_CODES.get(error.status_code, "invalid_request"), status=error.status_code)
    return error_response(ApiError(found.status, found.detail, error.headers))


async def on_unexpected(_: Request, __: Exception) -> Response:
    """Answer for a fault of the server itself; the facts go to the log and not to the client."""
    detail = ErrorDetail(message="the server failed on this request", type="server_error", code="internal_error")
    return error_response(ApiError(500, detail))


_ROUTER_CODES: Final[Mapping[int, str]] = {404: "unknown_url", 405: "method_not_allowed"}
