"""All choices of a job at once: their deltas in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from loadmaster.serving.http.errors import ApiError, ErrorDetail, unavailable
from loadmaster.serving.http.jobs import Choice, Job
from loadmaster.serving.types import Delta, ServingEngine


class Arrival(NamedTuple):
    """A delta of the choice with that number; None says that the choice has ended."""

    choice: int
    delta: Delta | None


@asynccontextmanager
async def running(engine: ServingEngine, job: Job) -> AsyncIterator[AsyncIterator[tuple[int, Delta]]]:
    """Queue all choices and give their deltas, each with the index of its choice.

    Leaving the context cancels those that have not ended, and waits for that. The queue between is as long as the answers at
    most, so a client that reads slowly does not hold the engine up.
    """
    queue: asyncio.Queue[Arrival] = asyncio.Queue()
    tasks = [
        asyncio.create_task(_forward(engine, job.adapter, choice, index, queue)) for index, choice in enumerate(job.choices)
    ]
    for index, task in enumerate(tasks):
        task.add_done_callback(partial(_tell_end, index, queue))
    try:
        yield _arrivals(queue, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell_end(index: int, queue: asyncio.Queue[Arrival], _: asyncio.Task[None]) -> None:
    queue.put_nowait(Arrival(index, None))


async def _forward(engine: ServingEngine, adapter: str, choice: Choice, index: int, queue: asyncio.Queue[Arrival]) -> None:
    deltas = engine.generate(choice.prompt.ids, choice.params, adapter=adapter)
    try:
        async for delta in deltas:
            queue.put_nowait(Arrival(index, delta))
            if delta.finish_reason is not None:
                return
    finally:
        close = getattr(deltas, "aclose", None)  # closing is what cancels; an iterator that has nothing to close is done
        if close is not None:
            await close()


async def _arrivals(queue: asyncio.Queue[Arrival], tasks: list[asyncio.Task[None]]) -> AsyncIterator[tuple[int, Delta]]:
    """Yield deltas until every choice has ended. Raises what a choice raised, ApiError for one that ended unfinished."""
    unfinished = set(range(len(tasks)))
    open_choices = len(tasks)
    while open_choices:
        arrival = await queue.get()
        if arrival.delta is None:
            open_choices -= 1
            tasks[arrival.choice].result()
            continue
        _check(arrival.delta)
        if arrival.delta.finish_reason is not None:
            unfinished.discard(arrival.choice)
        yield arrival.choice, arrival.delta
    if unfinished:
        raise _failed("the engine ended the answer without a reason")


def _check(delta: Delta) -> None:
    """Raise ApiError for a delta that says that its request failed, or was cancelled by somebody else than its client."""
    if delta.finish_reason == "error":
        raise _failed(delta.error or "the engine failed on this request")
    if delta.finish_reason == "cancelled":
        raise unavailable(delta.error or "the server is shutting down and ended this request", "cancelled")


def _failed(message: str) -> ApiError:
    return ApiError(500, ErrorDetail(message=message, type="server_error", code="engine_error"))
