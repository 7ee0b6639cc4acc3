"""Work beside the event loop, on a thread that ends with it.

The library that divides products among processors keeps helpers for every thread that has ever multiplied, until that thread
ends. While there are more of them than processors, they fall asleep between two products instead of waiting at the ready. So
no thread that has loaded a model may stay, as those of the event loop's own pool do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def on_passing_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises. It goes on when the wait for it is cancelled."""
    pool = ThreadPoolExecutor(1, "loadmaster-call")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    finally:
        pool.shutdown(wait=False)
