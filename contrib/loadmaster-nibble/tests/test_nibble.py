"""The decoder against the format's description, and claims that must be refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loadmaster.plugin import IntegrityError, TensorMeta

from loadmaster_nibble import GROUP, Nibble, NibbleMatrix


def stored(**tensors: tuple[str, tuple[int, ...]]) -> Any:
    """Return stored tensors of the given types and shapes."""
    metas = {
        name: TensorMeta(name=f"m.{name}", dtype=dtype, shape=shape, file=0, start=0, stop=0)
        for name, (dtype, shape) in tensors.items()
    }
    return SimpleNamespace(name="m", tensors=metas)


def test_weights_are_nibbles_less_eight_times_steps() -> None:
    nibbles = torch.arange(256, dtype=torch.uint8).reshape(4, 64)
    steps = torch.tensor([[0.5, 1.0, 2.0, 0.25]] * 4, dtype=torch.float16)
    matrix = NibbleMatrix(nibbles, steps)
    assert matrix.shape == (4, 128)
    for row, column in ((0, 0), (0, 1), (1, 31), (2, 32), (3, 127)):
        byte = 64 * row + column // 2
        code = byte >> 4 if column % 2 else byte & 15
        assert matrix.weight(row, row + 1)[0, column] == (code - 8) * steps[row, column // GROUP]


def test_other_tensors_are_not_claimed() -> None:
    assert Nibble().claim(stored(weight=("F32", (4, 64))), None) is None


@pytest.mark.parametrize(
    "steps", [None, ("F16", (4, 1)), ("F16", (2, 4)), ("F32", (4, 2))], ids=["absent", "few", "transposed", "float32"]
)
def test_steps_that_do_not_fit_are_refused_by_name(steps: tuple[str, tuple[int, ...]] | None) -> None:
    tensors = {"nibbles": ("U8", (4, 32))} | ({"steps": steps} if steps else {})
    with pytest.raises(IntegrityError, match=r"LM-NIBBLE-STEPS(.|\n)*m\.steps"):
        Nibble().claim(stored(**tensors), None)
