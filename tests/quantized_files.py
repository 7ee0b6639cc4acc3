"""GPTQ and AWQ matrices written and decoded from the descriptions of their formats, bit by bit and with numpy alone.

Nothing here knows the plugins: packing sets single bits, decoding is float64 arithmetic on the numbers that were packed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from loadmaster_hookspecs.dtypes import BY_TORCH_NAME
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.quantization import Affine, Claim, Matrix, PackedMatrix, Quantizer
from loadmaster_hookspecs.sharding import Interval

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
UNITS: Final = {2: (16, 1), 3: (32, 3), 4: (8, 1), 8: (4, 1)}


@dataclass(frozen=True)
class Numbers:
    """What a packed matrix means: codes [out, in], zero points and scales [groups, out], the group of each column."""

    bits: int
    codes: Ints
    zeros: Floats
    scales: torch.Tensor
    groups: Ints

    def weights(self) -> Floats:
        """Return the matrix [out, in] in float64: exact but for zero points that are no integers."""
        scales = self.scales.double().numpy()
        return np.asarray((self.codes - self.zeros[self.groups].T) * scales[self.groups].T)


def numbers(
    seed: int,
    bits: int,
    out: int,
    columns: int,
    groups: Ints,
    *,
    symmetric: bool = False,
    dtype: torch.dtype = torch.float16,
    step: float = 0.05,
) -> Numbers:
    """Return random numbers for a matrix; zero points cover the whole range unless it is symmetric, scales are near `step`."""
    rng = np.random.default_rng(seed)
    count = int(groups.max()) + 1 if len(groups) else 1
    top = 1 << bits
    zeros = np.full((count, out), top // 2) if symmetric else rng.integers(0, top, (count, out))
    scales = torch.from_numpy(rng.normal(0, step, (count, out))).to(dtype)
    return Numbers(bits, rng.integers(0, top, (out, columns)), zeros.astype(np.float64), scales, groups)


def bit_stream(values: Ints, bits: int) -> npt.NDArray[np.int32]:
    """Return every row of `values` as a stream of bits, lowest first, in whole units of 32-bit words."""
    per, words = UNITS[bits]
    rows, count = values.shape
    length = -(-count // per) * words * 32
    stream = np.zeros((rows, length), np.uint8)
    for index in range(count):
        for bit in range(bits):
            stream[:, index * bits + bit] = values[:, index] >> bit & 1
    return np.packbits(stream, axis=1, bitorder="little").view("<i4")


def gptq_tensors(matrix: Numbers, *, version: str = "v1", ids: bool = True) -> dict[str, torch.Tensor]:
    """Return the tensors of a GPTQ file: `version` is `v1`, `v2` or `plain`; `ids` says whether there is a `g_idx`."""
    tensors = {
        "qweight": torch.from_numpy(bit_stream(matrix.codes, matrix.bits).T.copy()),
        "scales": matrix.scales,
    }
    if version == "plain":
        tensors["qzeros"] = torch.from_numpy(matrix.zeros).to(matrix.scales.dtype)
    else:
        stored = (matrix.zeros.astype(np.int64) - (version == "v1")) % (1 << matrix.bits)
        tensors["qzeros"] = torch.from_numpy(bit_stream(stored, matrix.bits).copy())
    if ids:
        tensors["g_idx"] = torch.from_numpy(matrix.groups.astype(np.int32))
    return tensors


def awq_words(values: Ints) -> torch.Tensor:
    """Return `values` [rows, columns] eight to a word, nibble `i` holding value `AWQ_ORDER[i]`."""
    rows, columns = values.shape
    words = np.zeros((rows, columns // 8), np.uint32)
    for column in range(columns):
        place = AWQ_ORDER.index(column % 8)
        words[:, column // 8] |= (values[:, column] << 4 * place).astype(np.uint32)
    return torch.from_numpy(words.view(np.int32))


def gemm_tensors(matrix: Numbers) -> dict[str, torch.Tensor]:
    """Return the tensors of an AWQ file in the layout gemm."""
    return {"qweight": awq_words(matrix.codes.T), "scales": matrix.scales, "qzeros": awq_words(matrix.zeros.astype(np.int64))}


def gemv_tensors(matrix: Numbers, words: int) -> dict[str, torch.Tensor]:
    """Return the tensors of an AWQ file in the layout gemv, with room for `8 * words` groups."""
    groups, out = matrix.zeros.shape
    zeros = np.zeros((out, 8 * words), np.int64)
    zeros[:, :groups] = matrix.zeros.T
    scales = torch.zeros((out, 8 * words), dtype=matrix.scales.dtype)
    scales[:, :groups] = matrix.scales.T
    return {
        "qweight": torch.from_numpy(bit_stream(matrix.codes, 4).copy()),
        "scales": scales,
        "qzeros": torch.from_numpy(bit_stream(zeros, 4).copy()),
    }


def gemv_fast_tensors(matrix: Numbers, words: int) -> dict[str, torch.Tensor]:
    """Return the tensors of an AWQ file in the layout gemv_fast, with room for `8 * words` groups."""
    groups, out = matrix.zeros.shape
    columns = matrix.codes.shape[1]
    packed = np.zeros((out // 4, columns), np.uint16)
    for column in range(columns):
        block, within = divmod(column, 64)
        half, short = divmod(within, 32)
        eight, two, one = short // 8, short % 8 // 2, short % 2
        for row in range(4):
            word, nibble = divmod(64 * row + 32 * half + 8 * two + 4 * one + eight, 4)
            packed[:, 64 * block + word] |= (matrix.codes[row::4, column] << 4 * nibble).astype(np.uint16)
    scales = torch.zeros((8 * words, out), dtype=matrix.scales.dtype)
    offsets = torch.zeros_like(scales)
    scales[:groups] = matrix.scales
    offsets[:groups] = -(matrix.scales.float() * torch.from_numpy(matrix.zeros).float()).to(matrix.scales.dtype)
    return {"qweight": torch.from_numpy(packed.view(np.int16)), "scales": scales, "qzeros": offsets}


@dataclass
class Stored:
    """Tensors under one prefix, as a quantizer is shown them. `read` collects which values it asked for."""

    held: Mapping[str, torch.Tensor]
    name: str = "model.layers.0.mlp.down_proj"
    read: list[str] = field(default_factory=list)

    @property
    def tensors(self) -> Mapping[str, TensorMeta]:
        return {
            suffix: TensorMeta(
                name=f"{self.name}.{suffix}",
                dtype=BY_TORCH_NAME[str(tensor.dtype).removeprefix("torch.")],
                shape=tuple(tensor.shape),
                file=0,
                start=0,
                stop=tensor.nbytes,
            )
            for suffix, tensor in self.held.items()
        }

    def values(self, suffix: str, nbytes: int | None = None) -> bytes:
        self.read.append(suffix)
        return self.held[suffix].contiguous().numpy().tobytes()[:nbytes]


@dataclass(frozen=True)
class Part:
    """What one rank owns of a matrix, and how much padding it appends."""

    out: Sequence[tuple[int, int]]
    inner: Sequence[tuple[int, int]]
    more_rows: int = 0
    more_columns: int = 0

    def of(self, whole: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the rank's elements of a matrix [out, in], with padding."""
        rows = np.concatenate([np.arange(*run) for run in self.out])
        columns = np.concatenate([np.arange(*run) for run in self.inner])
        return np.pad(whole[np.ix_(rows, columns)], ((0, self.more_rows), (0, self.more_columns)))


def rank_matrix(quantizer: Quantizer, claim: Claim, tensors: Mapping[str, torch.Tensor], part: Part) -> Matrix:
    """Cut stored tensors by their layouts, as the engine does, and return the quantizer's matrix over the rank's part."""
    layouts = quantizer.layout(claim)
    local = {layout.name: _cut(layout, tensors[layout.name], part) for layout in layouts}
    packed = PackedMatrix(
        path="model.layers.0.mlp.down_proj",
        quantizer=quantizer.name,
        kernel="",
        params=claim.params,
        bits=claim.bits,
        group_size=claim.group_size,
        dtype=claim.dtype,
        out=tuple(Interval(*run) for run in part.out),
        inner=tuple(Interval(*run) for run in part.inner),
        rows=sum(stop - start for start, stop in part.out) + part.more_rows,
        columns=sum(stop - start for start, stop in part.inner) + part.more_columns,
        layouts=layouts,
    )
    return quantizer.matrix(packed, local)


def _cut(layout: TensorLayout, tensor: torch.Tensor, part: Part) -> torch.Tensor:
    assert len(layout.dims) == tensor.ndim
    for index, dim in enumerate(layout.dims):
        if dim.axis in ("out", "in"):
            runs, more = (part.out, part.more_rows) if dim.axis == "out" else (part.inner, part.more_columns)
            tensor = _cut_dimension(tensor, index, dim, runs, more)
    return tensor.contiguous()


def _cut_dimension(tensor: torch.Tensor, index: int, dim: AxisMap, runs: Sequence[tuple[int, int]], more: int) -> torch.Tensor:
    assert not dim.hard
    spans = [dim.stored(*run) for run in runs]
    pieces = [tensor.narrow(index, low, high - low) for low, high in spans]
    shape = list(tensor.shape)
    shape[index] = dim.words * (more // dim.per)
    return torch.cat([*pieces, torch.zeros(shape, dtype=tensor.dtype)], index)


def whole(claim: Claim) -> Part:
    """Return the part of a single rank."""
    return Part([(0, claim.out_features)], [(0, claim.in_features)])


def decode(quantizer: Quantizer, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any] | None) -> torch.Tensor:
    """Return the whole matrix that stored tensors are, decoded by a quantizer."""
    claim = quantizer.claim(Stored(tensors), settings)
    assert claim is not None
    return rank_matrix(quantizer, claim, tensors, whole(claim)).weight(0, claim.out_features)


def check_affine(affine: Affine | None, weights: torch.Tensor) -> None:
    """Check that codes, scales and zeros, where there are any, make up the weights [rows, columns] bit by bit."""
    if affine is None:
        return
    rows, columns = weights.shape
    codes = affine.codes(0, rows)
    assert codes.shape == weights.shape
    assert codes.dtype == torch.uint8
    assert affine.scales.shape == affine.zeros.shape == (columns // affine.group_size, rows)
    ids = torch.arange(columns) // affine.group_size
    rebuilt = (codes.to(affine.scales.dtype) - affine.zeros.t()[:, ids]) * affine.scales.t()[:, ids]
    assert torch.equal(rebuilt, weights)


def fixture(name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any], torch.Tensor]:
    """Return the key projection of a producer's own file, its configuration, and the producer's dequantised weights."""
    folder = Path(__file__).parent / "data" / name
    prefix = "model.layers.0.self_attn.k_proj."
    (file,) = folder.glob("*.safetensors")
    tensors = {key.removeprefix(prefix): value for key, value in load_file(file).items() if key.startswith(prefix)}
    config = json.loads((folder / "config.json").read_text())
    return tensors, config, load_file(folder / "expected" / "logits.safetensors")["layer0_k_proj"]
