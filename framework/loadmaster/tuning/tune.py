"""The whole of tuning: load a model as for serving, climb, and say what came of it."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import Any

import msgspec

from loadmaster.serving.engine import AsyncEngine
from loadmaster.serving.settings import EngineSettings
from loadmaster.tuning.climb import Bounds, Reading, Stop, best, next_batch
from loadmaster.tuning.kept import Tuning, place_of
from loadmaster.tuning.reading import Load, read, tokens_needed


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how far to go; see `Load` and `Bounds`. `kv_bytes` and `max_batch_tokens` are as in serving."""

    load: Load = Load()
    bounds: Bounds = Bounds()
    settings: EngineSettings = EngineSettings()


async def tune(
    path: str | os.PathLike[str],
    wishes: Wishes,
    *,
    on_load: Callable[[AsyncEngine], None] = lambda engine: None,
    on_reading: Callable[[Reading], None] = lambda reading: None,
    **options: Any,
) -> Tuning:
    """Load a model, read batches of doubling size, and return the best. Nothing is written.

    `options` are those of `AsyncEngine`. `on_load` is called once with the engine, `on_reading` after each batch. Raises what
    AsyncEngine raises, and WorkerError when a worker fails meanwhile.
    """
    bounds, load = wishes.bounds, wishes.load
    # Half of a step's tokens are left for prompts: beside more answers they would take many steps.
    limit = max(1, min(bounds.limit, wishes.settings.max_batch_tokens // 2))
    longest = tokens_needed(load, limit, wishes.settings.max_batch_tokens)
    settings = msgspec.structs.replace(wishes.settings, max_running=limit, max_model_len=longest, prefix_cache=False)
    readings: list[Reading] = []
    async with await AsyncEngine.open(path, settings=settings, **options) as engine:
        on_load(engine)
        blocks = engine.stats().kv_blocks_total
        bounds = msgspec.structs.replace(bounds, limit=limit, capacity=blocks // -(-longest // settings.block_size))
        while not isinstance(batch := next_batch(readings, bounds), Stop):
            readings.append(await read(engine, load, batch))
            on_reading(readings[-1])
        plan = engine.model.plan.data
    return Tuning(
        digest=plan.digest,
        place=place_of(plan),
        day=datetime.datetime.now(datetime.UTC).date().isoformat(),
        max_running=batch.choice,
        why=batch.why,
        prompt_tokens=load.prompt_tokens,
        max_batch_tokens=settings.max_batch_tokens,
        readings=tuple(best(readings)),
    )
