"""Random quantised matrices for tests of kernels, packed as GPTQ and AWQ files pack them, with an exact float64 reference.

Written from the formats' descriptions, independently of the plugins: a code is read back from the packed words whenever it is
asked for, so a kernel that rewrites the words too early gets wrong codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.quantization import Affine, MatrixFacts

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight rows the lowest, second lowest, ... four bits of an AWQ word hold."""


def pack_words(codes: torch.Tensor, bits: int = 4) -> torch.Tensor:
    """Return codes [n * 32 / bits, m] packed along the first dimension, lowest bits first: int32 [n, m]."""
    per = 32 // bits
    shifts = torch.arange(per, dtype=torch.int64)[None, :, None] * bits
    words: torch.Tensor = (codes.to(torch.int64).reshape(-1, per, codes.shape[1]) << shifts).sum(1)
    return words.to(torch.int32)


def unpack_words(words: torch.Tensor, bits: int = 4) -> torch.Tensor:
    """Return the codes of `pack_words`."""
    per = 32 // bits
    shifts = torch.arange(per, dtype=torch.int32, device=words.device)[None, :, None] * bits
    codes: torch.Tensor = (words[:, None] >> shifts) & (2**bits - 1)
    return codes.to(torch.uint8).flatten(0, 1)


def pack_awq(codes: torch.Tensor) -> torch.Tensor:
    """Return codes [n, m * 8] packed along the second dimension in AWQ's order: int32 [n, m]."""
    ordered = codes.reshape(len(codes), -1, 8)[:, :, list(AWQ_ORDER)].reshape(len(codes), -1)
    return pack_words(ordered.T).T.contiguous()


@dataclass
class AffineMatrix:
    """A matrix over packed words int32 [in * bits / 32, out], as GPTQ files have them. Implements `Matrix`."""

    qweight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    bits: int
    group_size: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.qweight.shape[1], self.qweight.shape[0] * 32 // self.bits

    def codes(self, start: int, stop: int) -> torch.Tensor:
        return unpack_words(self.qweight[:, start:stop], self.bits).T.contiguous()

    def weight(self, start: int, stop: int) -> torch.Tensor:
        index = torch.arange(self.shape[1], device=self.scales.device) // self.group_size
        scales, zeros = self.scales[index, start:stop].T, self.zeros[index, start:stop].T
        return (self.codes(start, stop) - zeros.float()) * scales.float()

    def affine(self) -> Affine | None:
        return Affine(self.bits, self.group_size, self.codes, self.scales, self.zeros)


@dataclass
class AwqMatrix(AffineMatrix):
    """The same over words int32 [in, out / 8] in AWQ's order."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.qweight.shape[1] * 8, self.qweight.shape[0]

    def codes(self, start: int, stop: int) -> torch.Tensor:
        stored = unpack_words(self.qweight.T).T.reshape(len(self.qweight), -1, 8)
        rows = torch.empty_like(stored)
        rows[:, :, list(AWQ_ORDER)] = stored
        return rows.flatten(1)[:, start:stop].T.contiguous()


@dataclass
class Case:
    """A matrix, its tensors by name, what the planner knows of it, and its exact weights and scales as float64 [out, in]."""

    matrix: AffineMatrix
    tensors: dict[str, torch.Tensor]
    facts: MatrixFacts
    weight: torch.Tensor
    scale: torch.Tensor


def make_case(
    quantizer: str = "gptq",
    *,
    rows: int = 64,
    columns: int = 128,
    group_size: int = 32,
    bits: int = 4,
    dtype: str = "BF16",
    zeros: torch.Tensor | None = None,
    seed: int = 0,
) -> Case:
    """Return a random matrix of `quantizer`, `gptq` or `awq`. Zero points are 1 to `2**bits - 1` unless they are given."""
    generator = torch.Generator().manual_seed(seed)
    groups = columns // group_size
    codes = torch.randint(0, 2**bits, (rows, columns), generator=generator, dtype=torch.uint8)
    scales = (torch.rand(groups, rows, generator=generator) * 0.02 + 0.001).half()
    if zeros is None:
        zeros = torch.randint(1, 2**bits, (groups, rows), generator=generator)
    index = torch.arange(columns) // group_size
    scale = scales.double()[index].T
    weight = (codes.double() - zeros.double()[index].T) * scale
    facts = MatrixFacts(
        quantizer=quantizer,
        bits=bits,
        group_size=group_size,
        rows=rows,
        columns=columns,
        aligned=True,
        stacked=False,
        dtype=dtype,
        device="cpu",
    )
    float_zeros = zeros.to(scales.dtype)
    stored_zeros = zeros.to(torch.int64).clamp(min=0)
    if quantizer == "awq":
        qweight = pack_awq(codes.T.contiguous())
        matrix: AffineMatrix = AwqMatrix(qweight, scales, float_zeros, bits, group_size)
        qzeros = pack_awq(stored_zeros)
    else:
        qweight = pack_words(codes.T.contiguous(), bits)
        matrix = AffineMatrix(qweight, scales, float_zeros, bits, group_size)
        qzeros = pack_words((stored_zeros.T - 1).remainder(2**bits), bits).T.contiguous()
    tensors = {"qweight": qweight, "qzeros": qzeros, "scales": scales}
    return Case(matrix, tensors, facts, weight, scale)


def stored_layouts(case: Case) -> tuple[TensorLayout, ...]:
    """Return the layouts of a case's tensors, as its quantizer would."""
    facts = case.facts
    group = AxisMap(axis="in", per=facts.group_size, hard=False)
    if facts.quantizer == "awq":
        packed = (AxisMap(axis="in"), AxisMap(axis="out", per=8))
    else:
        packed = (AxisMap(axis="in", per=8), AxisMap(axis="out"))
    return (
        TensorLayout(name="qweight", dims=packed, dtype="I32", role="quantised"),
        TensorLayout(name="qzeros", dims=(group, AxisMap(axis="out", per=8)), dtype="I32", role="scales"),
        TensorLayout(name="scales", dims=(group, AxisMap(axis="out")), dtype="F16", role="scales"),
    )
