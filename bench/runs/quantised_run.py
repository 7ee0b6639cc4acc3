"""loadmaster with a quantised model, or with the plain one beside it: a load that counts repacking, and tokens per second."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.runs.decoding import decode_rate
from bench.runs.process_memory import own_memory
from bench.runs.stopwatch import PROMPT, Stopwatch, report

if TYPE_CHECKING:
    from loadmaster import Engine

GATE_STAGE = "reserve"
"""The host's stage before which the ballast is freed and memory is counted: the first that takes memory for weights."""

LOAD_STAGES = ("reserve", "load", "bind")
"""The host's stages that make up the load phase. Kernels repack matrices in the last one."""


def main() -> None:
    """Load, count memory, decode, report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--read-mode", default="auto")
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--decode", type=int, required=True, help="tokens after the first; 0: nothing is generated")
    options = parser.parse_args()
    stopwatch = Stopwatch()

    import loadmaster
    from loadmaster_hookspecs.events import HOST_RANK, Event, StageStarted

    stopwatch.mark("imported")
    before: dict[str, int] = {}

    def observe(event: Event) -> None:
        if isinstance(event, StageStarted) and (event.rank, event.stage) == (HOST_RANK, GATE_STAGE):
            before.update(own_memory())
            stopwatch.gate()

    settings: dict[str, Any] = {"read_mode": options.read_mode, "kernel": options.kernel, "on_event": observe}
    with loadmaster.Engine(options.model, tensor_parallel=options.tp, **settings) as engine:
        stopwatch.mark("loaded")
        memory = own_memory()
        detail = _detail(engine, memory["pss"] - before["pss"])
        tokens: list[int] = []
        if options.decode:

            def generate(count: int) -> tuple[int, ...]:
                return engine.generate([PROMPT], max_tokens=count, temperature=0)[0].token_ids

            tokens = [*generate(1)]
            stopwatch.mark("first_token")
            detail["tokens_per_second"], tokens = decode_rate(generate, options.decode)
        stopwatch.seconds["load"] = sum(engine.report.seconds.get(stage, 0.0) for stage in LOAD_STAGES)
        notes = [f"plan {engine.report.digest}", *engine.notices]
        report(stopwatch.seconds, nbytes=engine.report.bytes_read, memory=memory, detail=detail, tokens=tokens, notes=notes)


def _detail(engine: Engine, grown: int) -> dict[str, float]:
    """Return stages, amplification, and by how many bytes all processes grew beside what the plan says weights take."""
    made = engine.report
    return {
        **{f"stage_{name}": value for name, value in made.seconds.items()},
        **{f"rank_{rank.rank}_bind": rank.seconds.get("bind", 0.0) for rank in made.ranks},
        "amplification": made.amplification,
        "planned_bytes": float(sum(rank.bytes_arena for rank in made.ranks)),
        "viewed_bytes": float(sum(rank.bytes_viewed for rank in made.ranks)),
        "grown_bytes": float(grown),
    }


if __name__ == "__main__":
    main()
