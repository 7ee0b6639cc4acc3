"""Threads that loaded a model or changed its weights have ended when steps go on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from loadmaster.serving import AsyncEngine
from loadmaster.serving.passing import on_passing_thread
from tiny_models import make_model, save_model


def left() -> list[str]:
    """Return the names of threads that could have multiplied and are not those of the steps."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("asyncio", "loadmaster-call"))]


async def none_left() -> bool:
    for _ in range(500):  # a thread takes a moment to end
        if not left():
            return True
        await asyncio.sleep(0.01)
    return False


def test_no_thread_stays_after_a_load_or_an_update(tmp_path: Path) -> None:
    folder = save_model(make_model("llama"), tmp_path / "model")

    async def scenario() -> None:
        async with await AsyncEngine.open(folder, executor="inline") as engine:
            assert await none_left(), left()
            await engine.update_weights(folder)
            assert await none_left(), left()
            await engine.sleep(2)
            await engine.wake()
            assert await none_left(), left()

    asyncio.run(scenario())


def test_results_and_errors_come_back() -> None:
    assert asyncio.run(on_passing_thread(lambda: threading.current_thread().name)).startswith("loadmaster-call")
    with pytest.raises(ZeroDivisionError):
        asyncio.run(on_passing_thread(lambda: 1 / 0))
