"""What comes of one request, from the thread that makes it to the event loop that asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from loadmaster.serving.types import Delta


class Stream(AsyncIterator[Delta]):
    """The deltas of one request, for one reader. Closing it, breaking off a wait, or forgetting it cancels the request."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Delta] = asyncio.Queue()
        self._cancel = cancel
        self._ended = False

    @property
    def put(self) -> Callable[[Delta], None]:
        """What adds a delta, on the event loop only. It does not keep the stream: a stream that nobody has is cancelled."""
        return self._queue.put_nowait

    async def __anext__(self) -> Delta:
        if self._ended:
            raise StopAsyncIteration
        try:
            delta = await self._queue.get()
        except BaseException:  # boundary: whatever ends the wait ends the request
            await self.aclose()
            raise
        self._ended = delta.finish_reason is not None
        return delta

    async def aclose(self) -> None:
        """Cancel the request unless it has ended. Safe to call twice."""
        if not self._ended:
            self._ended = True
            self._cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self._cancel()
