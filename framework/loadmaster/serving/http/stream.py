"""Answers as they come: server-sent events. Source of the format: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from loadmaster.serving.http.answers import Answer, count_usage
from loadmaster.serving.http.disconnect import ClientGone, unless_gone
from loadmaster.serving.http.errors import ApiError, error_body, from_loadmaster
from loadmaster.serving.http.jobs import Job
from loadmaster.serving.http.running import running
from loadmaster.serving.http.shapes import Shape
from loadmaster.serving.types import ServingEngine
from loadmaster_hookspecs.errors import LoadmasterError

DONE: Final = b"data: [DONE]\n\n"

_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def stream_events(engine: ServingEngine, job: Job, shape: Shape) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, `[DONE]` last. Closing the generator cancels what has not ended."""
    answers = [Answer() for _ in job.choices]
    opened: set[int] = set()
    async with running(engine, job) as deltas:
        async for index, delta in deltas:
            if index not in opened:
                opened.add(index)
                opening = shape.opening(job, index)
                if opening is not None:
                    yield _event(opening)
            if delta.text or delta.logprobs or delta.finish_reason:
                yield _event(shape.chunk(job, index, answers[index], delta))
            answers[index].add(delta)
    if job.include_usage:
        yield _event(shape.closing(job, count_usage(job, answers)))
    yield DONE


class EventStream(Response):
    """Sends events as they come and stops their making when the client leaves, or reads nothing for `send_seconds`.

    The response begins with the first event, so what fails before still has a status of its own; what fails later becomes
    an event with an error, and `[DONE]` is missing.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], send_seconds: float) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._send_seconds = send_seconds
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await unless_gone(receive, self._send_all(send))
        except ClientGone:
            if not self._begun:
                raise

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)
            self._begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                await self._send_piece(send, first)
                async for event in events:
                    await self._send_piece(send, event)
            except (ApiError, LoadmasterError) as error:
                told = from_loadmaster(error) if isinstance(error, LoadmasterError) else error
                await self._send_piece(send, b"data: " + error_body(told) + b"\n\n")
            await self._send_piece(send, b"", last=True)

    async def _send_piece(self, send: Send, piece: bytes, *, last: bool = False) -> None:
        try:
            async with asyncio.timeout(self._send_seconds):
                await send({"type": "http.response.body", "body": piece, "more_body": not last})
        except TimeoutError:
            raise ClientGone from None


def _event(record: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(record) + b"\n\n"
