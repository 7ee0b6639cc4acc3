"""Matrices of four bits per weight: two in a byte along the columns, one step size for 32 columns of a row.

A weight is `(nibble - 8) * step`. The file holds `NAME.nibbles`, uint8 [out, in / 2], the even column in the low half of its
byte, and `NAME.steps`, float16 [out, in / 32].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loadmaster.plugin import (
    Affine,
    AxisMap,
    Claim,
    FileReader,
    IntegrityError,
    Matrix,
    PackedMatrix,
    Quantizer,
    QuantOutline,
    StoredMatrix,
    TensorLayout,
    hookimpl,
)

if TYPE_CHECKING:
    import torch

GROUP = 32
LAYOUT = (
    TensorLayout(name="nibbles", dims=(AxisMap(axis="out"), AxisMap(axis="in", per=2)), dtype="U8", role="quantised"),
    TensorLayout(name="steps", dims=(AxisMap(axis="out"), AxisMap(axis="in", per=GROUP)), dtype="F16", role="scales"),
)
"""Both maps of the columns are hard: a rank gets whole groups, so that decoding needs no case for a group it shares."""


class Nibble:
    """Claims matrices by their tensors; the configuration need not say anything."""

    name = "nibble"

    def settings(self, config: Mapping[str, Any], read: FileReader) -> Mapping[str, Any] | None:
        """Return the settings of a configuration that names this method."""
        said = config.get("quantization_config")
        return said if isinstance(said, Mapping) and said.get("quant_method") == self.name else None

    def outline(self, settings: Mapping[str, Any]) -> QuantOutline:
        """Return the one size of group there is."""
        return QuantOutline(quantizer=self.name, bits=4, group_size=GROUP)

    def claim(self, stored: StoredMatrix, settings: Mapping[str, Any] | None) -> Claim | None:
        """Claim what has nibbles, and refuse it by name when the steps do not fit."""
        nibbles, steps = stored.tensors.get("nibbles"), stored.tensors.get("steps")
        if nibbles is None:
            return None
        rows, columns = nibbles.shape[0], 2 * nibbles.shape[-1]
        if steps is None or steps.shape != (rows, columns // GROUP) or (nibbles.dtype, steps.dtype) != ("U8", "F16"):
            raise IntegrityError(
                "LM-NIBBLE-STEPS",
                f"the nibbles of {rows} x {columns} weights need steps of type F16 and shape [{rows}, {columns // GROUP}]",
                where={"tensor": f"{stored.name}.steps"},
                why="it is absent" if steps is None else f"it is {steps.dtype} {list(steps.shape)}",
            )
        return Claim(
            score=1.0,
            evidence="has nibbles and steps",
            suffixes=("nibbles", "steps"),
            out_features=rows,
            in_features=columns,
            bits=4,
            group_size=GROUP,
            dtype="F32",
        )

    def layout(self, claim: Claim) -> tuple[TensorLayout, ...]:
        """Return the table."""
        return LAYOUT

    def matrix(self, part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> Matrix:
        """Return the decoder of a rank's part."""
        return NibbleMatrix(tensors["nibbles"], tensors["steps"])


class NibbleMatrix:
    """Decodes rows when they are asked for."""

    def __init__(self, nibbles: torch.Tensor, steps: torch.Tensor) -> None:
        self.nibbles, self.steps = nibbles, steps
        self.shape = (nibbles.shape[0], 2 * nibbles.shape[1])

    def codes(self, start: int, stop: int) -> torch.Tensor:
        """Return the nibbles of some rows, one per byte."""
        packed = self.nibbles[start:stop]
        return packed.unsqueeze(-1).bitwise_right_shift(packed.new_tensor([0, 4])).bitwise_and_(15).flatten(1)

    def weight(self, start: int, stop: int) -> torch.Tensor:
        """Return some rows as float32."""
        return (self.codes(start, stop).float() - 8) * self.steps[start:stop].float().repeat_interleave(GROUP, dim=1)

    def affine(self) -> Affine:
        """Return the parts, for kernels that multiply without decoding first."""
        scales = self.steps.T
        return Affine(bits=4, group_size=GROUP, codes=self.codes, scales=scales, zeros=scales.new_full(scales.shape, 8))


@hookimpl
def loadmaster_quantizers() -> list[Quantizer]:
    """Return the quantizer."""
    return [Nibble()]
