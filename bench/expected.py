"""What must have been loaded: the sums of a checkpoint's tensors, straight from its files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench.records import sums_digest
from bench.runs.stopwatch import model_files
from bench.runs.sums import words_sum


def expected_sums(model: Path) -> str:
    """Return the digest of a checkpoint's sums."""
    whole = {}
    for file in model_files(model):
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
        header.pop("__metadata__", None)
        words = np.memmap(file, np.uint8, "r")
        for name, entry in header.items():
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            values = np.frombuffer(words[begin:end].data, np.uint16).reshape(entry["shape"])
            whole[name] = words_sum(values if values.ndim == 2 else values[None, :])
    return sums_digest({"whole": whole, "parts": {}})
