"""From the thread that steps to the event loops that asked: what one step has to tell, in one call to each."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from loadmaster.serving.types import Delta


class Deliveries:
    """Collects what one step has to tell and hands it to the event loops, one call each. Used by the thread that steps."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[Any, Delta]]] = defaultdict(list)

    def add(self, loop: asyncio.AbstractEventLoop, put: Any, delta: Delta) -> None:
        """Note a delta for `put` on `loop`."""
        self._waiting[loop].append((put, delta))

    def flush(self) -> None:
        """Hand over what was noted. On a loop that is closed nobody waits."""
        waiting, self._waiting = self._waiting, defaultdict(list)
        for loop, items in waiting.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_deliver, items)


def _deliver(items: Sequence[tuple[Any, Delta]]) -> None:
    for put, delta in items:
        put(delta)
