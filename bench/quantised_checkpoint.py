"""Synthetic 4-bit GPTQ checkpoints with the proportions of the plain ones: random codes, one scale per 128 columns, symmetric.

The tensors are those that auto-gptq writes: per matrix `qweight` int32 [in / 8, out], `qzeros` int32 [groups, out / 8] with
first-version zero points (7 for 8), `scales` float16 [groups, out] and `g_idx` int32 [in], which counts up. Embedding, output
and norms are float16 there and bfloat16 here, as in a file made from a bfloat16 model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench.checkpoint import SIZES, Proportions, make_once, model_config, tensors, weights, write_small_files
from bench.tensor_files import BLOCK_BYTES, Stored, write_files

ENDING: Final = "-4bit"
QUANTISED_SIZES: Final = tuple(f"{size}{ENDING}" for size in ("tiny", "3g"))
"""The 4-bit checkpoints by name: 8 MB and 1.0 GB. What comes before the ending is the plain checkpoint of the same shapes."""

GROUP: Final = 128
"""Columns per scale."""

ZEROS: Final = 0x77777777
"""Eight stored zero points of 7: eight codes of a symmetric matrix have 8 as theirs, and the first version stores one less."""

SCALE: Final = 0x1A00
"""Bits of the smallest scale, float16: 0.00293. Codes times scales are up to 0.03 in size, as in the plain checkpoints."""


def plain_size(size: str) -> str:
    """Return the size of the plain checkpoint of the same shapes."""
    return size.removesuffix(ENDING)


def quantised_checkpoint(cache: Path, size: str) -> Path:
    """Return the folder of a 4-bit checkpoint below `cache`, made on first use. Raises OSError where the disk is too small."""
    proportions = SIZES[plain_size(size)]
    needed = sum(stored.nbytes for stored in quantised_tensors(proportions))
    return make_once(cache / f"llama-{size}", needed, lambda folder: _write(folder, proportions))


def quantised_tensors(proportions: Proportions) -> Iterator[Stored]:
    """Yield the tensors in the order in which they are stored: those of the plain checkpoint, each projection in parts."""
    for name, shape in tensors(proportions):
        if not name.endswith("_proj.weight"):
            yield Stored(name, "BF16", shape)
            continue
        module = name.removesuffix(".weight")
        out, columns = shape
        groups = columns // GROUP
        yield Stored(f"{module}.qweight", "I32", (columns // 8, out))
        yield Stored(f"{module}.qzeros", "I32", (groups, out // 8))
        yield Stored(f"{module}.scales", "F16", (groups, out))
        yield Stored(f"{module}.g_idx", "I32", (columns,))


def _write(folder: Path, proportions: Proportions) -> None:
    settings = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "desc_act": False,
        "sym": True,
        "checkpoint_format": "gptq",
    }
    write_small_files(folder, {**model_config(proportions), "quantization_config": settings})
    write_files(folder, list(quantised_tensors(proportions)), proportions.files, _values)


def _values(stored: Stored, numbers: np.random.Generator) -> Iterator[npt.NDArray[Any]]:
    """Yield the elements of a tensor in blocks. Codes are any of the sixteen, scales vary by a quarter."""
    match stored.name.rpartition(".")[2]:
        case "qweight":
            for start in range(0, stored.nbytes, BLOCK_BYTES):
                yield np.frombuffer(numbers.bytes(min(BLOCK_BYTES, stored.nbytes - start)), np.uint8)
        case "qzeros":
            yield np.full(stored.shape, ZEROS, np.uint32)
        case "scales":
            yield numbers.integers(SCALE, SCALE + 0x100, stored.shape, np.uint16)
        case "g_idx":
            yield (np.arange(stored.shape[0]) // GROUP).astype(np.int32)
        case _:
            yield from weights(stored, numbers)
