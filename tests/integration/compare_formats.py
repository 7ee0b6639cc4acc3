"""Loads one model from two folders, split over processes and over threads. Prints JSON.

Run as `python compare_formats.py ORIGINAL EXPORTED` with OMP_NUM_THREADS=1: then every rank computes on one thread, in
whichever process. Equal weights give equal logits but for rounding: which kernel multiplies, and so in which order it adds,
may depend on where the bytes begin in memory.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import numpy.typing as npt

import loadmaster as lm

IDS = [3, 17, 200, 5, 249, 8, 8, 90, 41, 2, 7]

Load = tuple[npt.NDArray[np.float32], dict[str, object]]


def load(folder: str, ranks: int, executor: str) -> Load:
    """Return the logits, and what the load was."""
    with lm.Engine(folder, tensor_parallel=ranks, executor=executor) as engine:
        facts: dict[str, object] = {
            "format": engine.plan.data.format,
            "bytes": [[rank.bytes_planned, rank.bytes_read] for rank in engine.report.ranks],
            "amplification": engine.report.amplification,
            "notices": engine.notices,
            "torch_in_host": "torch" in sys.modules,
        }
        return engine.logits(IDS), facts


def main(original: str, exported: str) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    loads = {
        "exported, 2 processes": load(exported, 2, "multiprocess"),
        "original, 2 threads": load(original, 2, "inline"),
        "exported, 3 threads": load(exported, 3, "inline"),
        "original, 3 threads": load(original, 3, "inline"),
    }
    names = list(loads)
    differences = {
        first: float(np.max(np.abs(loads[first][0] - loads[second][0])))
        for first, second in zip(names[::2], names[1::2], strict=True)
    }
    spread = min(float(np.ptp(logits)) for logits, _ in loads.values())
    facts = {name: facts for name, (_, facts) in loads.items()}
    print(json.dumps({"differences": differences, "spread": spread, "loads": facts}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
