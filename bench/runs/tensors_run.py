"""The shared course of peers that yield tensors and no model: imports, gate, load, touch, report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.runs.process_memory import own_memory
from bench.runs.stopwatch import Stopwatch, report, wants_check

if TYPE_CHECKING:
    import torch

Load = Callable[[], "tuple[dict[str, torch.Tensor], object]"]
"""Returns the tensors by name, and what must stay alive while they are used."""


def measure(stopwatch: Stopwatch, load: Load) -> None:
    """Time `load` and the touching of all pages, and report. Imports are done before; their end is marked here."""
    from bench.runs.sums import whole_sums
    from bench.runs.touch import touch

    stopwatch.mark("imported")
    stopwatch.gate()
    with stopwatch.phase("load"):
        tensors, owner = load()
    with stopwatch.phase("touch"):
        nbytes = touch(tensors.values())
    memory = own_memory()
    report(stopwatch.seconds, nbytes=nbytes, memory=memory, sums=whole_sums(tensors) if wants_check() else None)
    del owner
