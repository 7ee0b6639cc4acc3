"""Answers in one piece."""

from __future__ import annotations

from loadmaster.serving.http.answers import Answer
from loadmaster.serving.http.jobs import Job
from loadmaster.serving.http.running import running
from loadmaster.serving.types import ServingEngine


async def collect(engine: ServingEngine, job: Job) -> list[Answer]:
    """Return the answers of all choices. Cancelling the call cancels them."""
    answers = [Answer() for _ in job.choices]
    async with running(engine, job) as deltas:
        async for index, delta in deltas:
            answers[index].add(delta)
    return answers
