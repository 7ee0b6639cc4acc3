"""The clock of a contestant: it starts when the parent started the process, and stands still while ballast is handed over."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

STARTED = "BENCH_STARTED_NS"
"""Variable with the monotonic time in nanoseconds at which the parent started this process."""

BALLAST = "BENCH_BALLAST"
"""Variable with the address of the process that holds the ballast; absent when there is none."""

CHECK = "BENCH_CHECK"
"""Variable that is set when the loaded tensors are to be summed after the measurement."""

MARK = '{"bench":'
"""How the one line of JSON begins; libraries print other things on standard output."""

GATE_TIMEOUT_S = 120.0
PROMPT = (5, 17, 42, 99, 3, 250, 77, 8, 121, 64, 200, 31, 12, 88, 150, 7)
"""The prompt of every contestant that generates, as token ids: no tokenizer's speed enters the comparison."""


class Stopwatch:
    """Seconds of one contestant. `seconds` holds durations (`load`, `touch`) and times since the start (`imported`, ...)."""

    def __init__(self) -> None:
        self._birth = int(os.environ.get(STARTED) or time.monotonic_ns())
        self.seconds: dict[str, float] = {"waited": 0.0}

    def now(self) -> float:
        """Return the seconds since the process was started, without those it waited for the ballast."""
        return (time.monotonic_ns() - self._birth) / 1e9 - self.seconds["waited"]

    def mark(self, name: str) -> None:
        """Note the time since the start."""
        self.seconds[name] = self.now()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        start = self.now()
        yield
        self.seconds[name] = self.now() - start

    def gate(self) -> None:
        """Have the ballast freed now, and wait until it is. Does nothing where there is none, or when it is gone already."""
        begin = time.monotonic_ns()
        release_ballast(os.environ.get(BALLAST, ""))
        self.seconds["waited"] += (time.monotonic_ns() - begin) / 1e9


def release_ballast(address: str) -> bool:
    """Ask the process at an abstract socket address to free its memory. Return whether it has."""
    if not address:
        return False
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(GATE_TIMEOUT_S)
        try:
            line.connect(f"\0{address}")
        except ConnectionError:
            return False
        return line.recv(16) == b"freed"


def wants_check() -> bool:
    """Return whether the loaded tensors are to be summed."""
    return bool(os.environ.get(CHECK))


def model_files(model: Path) -> list[Path]:
    """Return the tensor files of a checkpoint folder in order."""
    return sorted(model.glob("*.safetensors"))


def report(
    seconds: Mapping[str, float],
    *,
    nbytes: int,
    memory: Mapping[str, int],
    detail: Mapping[str, float] | None = None,
    tokens: Sequence[int] = (),
    sums: Mapping[str, Mapping[str, int]] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Print the one line of JSON: seconds, bytes loaded, memory of the process tree, tokens, and partial sums of tensors."""
    content = {
        "bench": 1,
        "seconds": dict(seconds),
        "nbytes": nbytes,
        "memory": dict(memory),
        "detail": dict(detail or {}),
        "tokens": list(tokens),
        "sums": sums,
        "notes": list(notes),
    }
    sys.stdout.flush()
    sys.stdout.write("\n" + json.dumps(content, separators=(",", ":")) + "\n")
    sys.stdout.flush()
