"""loadmaster: an engine is made, answers with one token, and reports."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.runs.process_memory import own_memory
from bench.runs.stopwatch import PROMPT, Stopwatch, report, wants_check
from bench.runs.sums import Sums

if TYPE_CHECKING:
    from loadmaster import Engine
    from loadmaster_engine.report import RankReport

GATE_STAGE = "reserve"
"""The host's stage before which the ballast is freed: the first that takes memory for weights."""

LOAD_STAGES = ("reserve", "load")
"""The host's stages that make up the load phase."""


def fetched(ranks: Iterable[RankReport]) -> int:
    """Return the bytes that the kernel fetched from storage. Cold files are brought in before the load copies from them."""
    return sum(rank.counters.get(name, 0) for rank in ranks for name in ("proc_warmed", "proc_stored"))


def main() -> None:
    """Load, answer, report. With `--touch` every rank reads a byte of every page first; the first token then says nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--read-mode", default="auto")
    parser.add_argument("--executor")
    parser.add_argument("--touch", action="store_true")
    options = parser.parse_args()
    stopwatch = Stopwatch()

    import loadmaster
    from loadmaster_hookspecs.events import HOST_RANK, Event, StageFinished, StageStarted

    stopwatch.mark("imported")

    def observe(event: Event) -> None:
        if isinstance(event, StageStarted) and (event.rank, event.stage) == (HOST_RANK, GATE_STAGE):
            stopwatch.gate()
        elif isinstance(event, StageFinished) and (event.rank, event.stage) == (HOST_RANK, "spawn"):
            stopwatch.mark("workers_ready")

    inspecting = options.touch or wants_check()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        settings: dict[str, Any] = {
            "tensor_parallel": options.tp,
            "read_mode": options.read_mode,
            "executor": options.executor,
            "on_event": observe,
        }
        if inspecting:
            os.environ["BENCH_INSPECT"] = scratch
            settings["plugins"] = ["bench.runs.inspecting_family"]
        with loadmaster.Engine(options.model, **settings) as engine:
            stopwatch.mark("loaded")
            if options.touch:
                engine.logits(PROMPT)
            answer = engine.generate([PROMPT], max_tokens=1, temperature=0)[0]
            stopwatch.mark("first_token")
            _report(stopwatch, engine, answer.token_ids, Path(scratch) if inspecting else None, options.touch)


def _report(stopwatch: Stopwatch, engine: Engine, tokens: tuple[int, ...], scratch: Path | None, touched: bool) -> None:
    made = engine.report
    stopwatch.seconds["load"] = sum(made.seconds.get(stage, 0.0) for stage in LOAD_STAGES)
    sums: Sums | None = None
    if scratch is not None:
        from bench.runs.inspecting_family import read_findings

        touching, sums = read_findings(scratch)
        stopwatch.seconds["touch"] = touching
    if touched:
        del stopwatch.seconds["first_token"]
    detail = {
        **{f"stage_{name}": value for name, value in made.seconds.items()},
        **{f"rank_{rank.rank}_load": rank.seconds.get("load", 0.0) for rank in made.ranks},
        "amplification": made.amplification,
        "bytes_unique": float(made.bytes_unique),
        "bytes_stored": float(fetched(made.ranks)),
    }
    report(
        stopwatch.seconds,
        nbytes=made.bytes_read,
        memory=own_memory(),
        detail=detail,
        tokens=tokens,
        sums=sums,
        notes=[f"plan {made.digest}", *engine.notices],
    )


if __name__ == "__main__":
    main()
