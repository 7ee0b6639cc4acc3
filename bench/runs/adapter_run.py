"""loadmaster: one adapter is loaded and unloaded again and again while requests with others run."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from bench.runs.adapter_stream import CANDIDATES, Gap, Traffic, known_answers
from bench.runs.process_memory import own_memory
from bench.runs.stopwatch import Stopwatch, report

STAYING: Final = ("small", "wide")
"""Folders of the adapters that are there all the time."""

COMING: Final = "coming"
"""Folder of the one that comes and goes."""

SETTLED: Final = 2
"""Loads before memory is first measured: the planner has started then."""

REST: Final = 6
"""Tokens that every request gets between two loads, with nothing else going on."""


class Spans:
    """Times in which loads ran, and those in which nothing but requests did."""

    def __init__(self) -> None:
        self.loads: list[tuple[float, float]] = []
        self.rests: list[tuple[float, float]] = []

    def during_load(self, gaps: Sequence[Gap], number: int | None = None) -> list[float]:
        """Return the gaps that loads touched: all but the first one, or the one with that number."""
        chosen = self.loads[1:] if number is None else [self.loads[number]]
        return [
            gap.seconds for gap in gaps if any(gap.begin < end and gap.begin + gap.seconds > begin for begin, end in chosen)
        ]

    def at_rest(self, gaps: Sequence[Gap]) -> list[float]:
        """Return the gaps within rests."""
        return [
            gap.seconds
            for gap in gaps
            if any(begin <= gap.begin and gap.begin + gap.seconds <= end for begin, end in self.rests)
        ]


def main() -> None:
    """Load, serve, change adapters, report."""
    options = _options()
    stopwatch = Stopwatch()

    from loadmaster.serving import AsyncEngine, EngineSettings

    stopwatch.mark("imported")

    async def serve_all() -> None:
        settings = EngineSettings(prefix_cache=False, max_running=CANDIDATES, max_model_len=256)
        more: dict[str, Any] = {"tensor_parallel": options.tp, "executor": options.executor}
        more["adapters"] = {name: options.adapters / name for name in (*STAYING, COMING)}
        async with await AsyncEngine.open(options.model, settings=settings, **more) as engine:
            stopwatch.mark("loaded")
            detail, memory = await _measure(engine, options)
            report(stopwatch.seconds, nbytes=engine.model.report.bytes_read, memory=memory, detail=detail)

    asyncio.run(serve_all())


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser()
    made.add_argument("model", type=Path)
    made.add_argument("adapters", type=Path)
    made.add_argument("--tp", type=int, default=1)
    made.add_argument("--executor")
    made.add_argument("--loads", type=int, default=100)
    made.add_argument("--requests", type=int, default=3, help="requests at once")
    made.add_argument("--answer", type=int, default=6, help="tokens of an answer")
    return made.parse_args()


async def _measure(engine: Any, options: argparse.Namespace) -> tuple[dict[str, float], dict[str, int]]:
    """Return figures and the memory at the end."""
    each = -(-options.requests // (1 + len(STAYING)))
    *asked, own = await known_answers(engine, (*STAYING, COMING), each, options.answer)
    coming = own[-1]  # the one that tells most
    await engine.adapters.unload(COMING)
    mixed = list(chain.from_iterable(zip(*asked, strict=True)))[: options.requests]
    traffic, spans = Traffic(engine, mixed, options.answer), Spans()
    traffic.start()
    await traffic.tokens(options.answer)
    before = 0
    for number in range(options.loads + 1):
        begin = time.perf_counter()
        await traffic.tokens(REST)
        spans.rests.append((begin, time.perf_counter()))
        if number == SETTLED:
            before = own_memory()["pss"]
        begin = time.perf_counter()
        await engine.adapters.load(COMING, options.adapters / COMING)
        spans.loads.append((begin, time.perf_counter()))
        await traffic.ask(coming)
        await engine.adapters.unload(COMING)
    after = own_memory()
    await traffic.stop()
    return _figures(traffic, spans, before, after["pss"]), after


def _figures(traffic: Traffic, spans: Spans, before: int, after: int) -> dict[str, float]:
    seconds = [end - begin for begin, end in spans.loads]
    rest, loading = spans.at_rest(traffic.gaps), spans.during_load(traffic.gaps)
    gaps = {"rest": rest, "load": loading, "first": spans.during_load(traffic.gaps, 0)}
    return {
        "answered": traffic.answered,
        "compared_tokens": traffic.compared,
        "failed": traffic.failed,
        "changed": traffic.changed,
        "wrong": traffic.failed + traffic.changed,
        "loads": len(seconds) - 1,
        "first_load_seconds": seconds[0],
        "load_seconds": median(seconds[1:]),
        **{f"{name}_median": median(values) for name, values in gaps.items()},
        **{f"{name}_p95": _p95(values) for name, values in gaps.items()},
        **{f"{name}_longest": max(values) for name, values in gaps.items()},
        "ratio_median": median(loading) / median(rest),
        "ratio_p95": _p95(loading) / _p95(rest),
        "memory_before": before,
        "memory_after": after,
        "memory_off": abs(after / before - 1),
    }


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20)[-1]


if __name__ == "__main__":
    main()
