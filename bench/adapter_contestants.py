"""Who loads adapters while requests run: one rank in the calling process, one in a worker, and two in workers."""

from __future__ import annotations

from typing import Final

from bench.adapter_names import INLINE, TWO, WORKER
from bench.contestants import HOT, Contestant

SHORT: Final = ("--loads", "3")
"""The work with the tiny model: it is there to try the benchmark itself."""


def adapter_contestants(*, short: bool = False) -> list[Contestant]:
    """Return everyone. `short` asks for less."""
    more = SHORT if short else ()
    return [
        _one(INLINE, "one rank in the calling process, which plans adapters too", *more),
        _one(WORKER, "one rank in a worker process, the planner in another", *more, "--executor", "multiprocess"),
        _one(TWO, "two ranks in worker processes, the planner in another", *more, "--executor", "multiprocess", "--tp", "2"),
    ]


def _one(name: str, about: str, *options: str) -> Contestant:
    arguments = ("{model}", "{adapters}", *options)
    return Contestant(
        name=name, about=about, script="adapter_run", arguments=arguments, conditions=HOT, private=2.0, sums=False
    )
