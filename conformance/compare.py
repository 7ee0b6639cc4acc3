"""loadmaster beside a producer: decoded matrices, logits, and the same logits over several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file

import loadmaster
from conformance.records import Outcome, Weights

KERNEL: Final = "dequant"
DTYPE: Final = "float32"
RANKS: Final = (2, 3)
"""Numbers of ranks that are compared with one."""

Logits = npt.NDArray[np.float32]


def compare(folder: Path) -> Outcome:
    """Load a producer's model in every way and say how far each is from what the producer expects of it."""
    probe = load_arrays(folder / "expected" / "logits.safetensors")
    ids: list[int] = probe["input_ids"][0].tolist()
    alone = _logits(folder, ids, 1)
    return Outcome(
        weights=compare_weights(_decoded(folder), load_file(folder / "expected" / "weights.safetensors")),
        logits=relative_error(alone, probe["logits"][0]),
        ranks={ranks: relative_error(_logits(folder, ids, ranks), alone) for ranks in RANKS},
    )


def compare_weights(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> Weights:
    """Count the matrices that differ in any element, and the largest difference beside the largest weight of its matrix."""
    if found.keys() != expected.keys():
        raise ValueError(f"matrices of only one side: {sorted(found.keys() ^ expected.keys())}")
    errors = [relative_error(found[name].float().numpy(), weight.float().numpy()) for name, weight in expected.items()]
    return Weights(matrices=len(errors), different=sum(error > 0 for error in errors), worst=max(errors))


def relative_error(found: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    """Return the largest difference beside the largest expected value; infinity when shapes differ or a value is no number."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _logits(folder: Path, ids: list[int], ranks: int) -> Logits:
    with loadmaster.Engine(folder, tensor_parallel=ranks, executor="inline", dtype=DTYPE, kernel=KERNEL) as engine:
        return engine.logits(ids)


@torch.inference_mode()
def _decoded(folder: Path) -> dict[str, torch.Tensor]:
    """Return every quantised matrix [out, in] as loadmaster decodes it.

    One row of the identity picks out one column, and float32 holds every decoded value, so nothing is rounded.
    """
    model = loadmaster.load_model(folder, dtype=DTYPE, kernel=KERNEL)
    found: dict[str, torch.Tensor] = {}
    for part in loadmaster.plan(folder, dtype=DTYPE, kernel=KERNEL).ranks[0].packed:
        layer = model.get_submodule(part.path)
        layer.register_parameter("bias", None)
        found[part.path] = layer(torch.eye(part.columns)).t()
    return found
