"""A rank's part of a GPTQ matrix, back to numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from loadmaster_hookspecs.layout import AxisMap
from loadmaster_hookspecs.quantization import PackedMatrix
from loadmaster_plugins.grouped.bits import STREAM, turned, unpack_stream
from loadmaster_plugins.grouped.columns import consecutive, ordered
from loadmaster_plugins.grouped.matrix import GroupedMatrix, Rows
from loadmaster_plugins.grouped.runs import clip, pick

if TYPE_CHECKING:
    import torch


def decoded(part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> GroupedMatrix:
    """Return the matrix over a rank's tensors. Nothing is unpacked before it is asked for."""
    rows = sum(interval.size for interval in part.out)
    columns = sum(interval.size for interval in part.inner)
    scales = tensors["scales"]
    if part.params["g_idx"]:
        grouping = ordered(tensors["g_idx"], columns)
    else:
        grouping = consecutive(part.inner, part.group_size, held_whole=False, device=scales.device)
    return GroupedMatrix(
        shape=(part.rows, part.columns),
        rows=rows,
        columns=columns,
        bits=part.bits,
        codes=_codes(part, tensors["qweight"]),
        scales=lambda start, stop: scales[:, start:stop].t(),
        zeros=_zeros(part, tensors),
        grouping=grouping,
        words=_whole_words(part, tensors["qweight"]),
    )


def _whole_words(part: PackedMatrix, qweight: torch.Tensor) -> torch.Tensor | None:
    """Return the packed codes where they are words of eight codes, none of which is padding or belongs to another rank.

    A cut through a word keeps the whole word, so there are more of them than columns need.
    """
    return qweight if part.bits == 4 and qweight.shape == (part.columns / 8, part.rows) else None


def _codes(part: PackedMatrix, qweight: torch.Tensor) -> Rows:
    """Return rows of codes. `qweight` is int32 [words, rows]."""
    per, words = STREAM[part.bits]
    runs = AxisMap(axis="in", per=per, words=words).kept(part.inner)

    def codes(start: int, stop: int) -> torch.Tensor:
        def unpack(first: int, last: int) -> torch.Tensor:
            return unpack_stream(turned(qweight[first * words : last * words, start:stop]), part.bits)

        return pick(runs, per, unpack, 1)

    return codes


def _zeros(part: PackedMatrix, tensors: Mapping[str, torch.Tensor]) -> Rows:
    """Return the zero points of rows [rows, groups]: uint8, or what the file has for unpacked ones."""
    import torch

    kind = part.params["zeros"]
    if kind == "middle":
        scales = tensors["scales"]
        middle = torch.full((1, 1), 1 << part.bits - 1, dtype=torch.uint8, device=scales.device)
        return lambda start, stop: middle.expand(stop - start, len(scales))
    stored = tensors[str(part.params["zeros_tensor"])]
    if kind == "plain":
        return lambda start, stop: stored[:, start:stop].t()
    per, words = STREAM[part.bits]
    runs = AxisMap(axis="out", per=per, words=words).kept(part.out)

    def zeros(start: int, stop: int) -> torch.Tensor:
        some = clip(runs, start, stop)
        found = pick(some, per, lambda first, last: unpack_stream(stored[:, first * words : last * words], part.bits), 1)
        # The sum wraps around within the bits: a zero point of 0 is stored as the highest value.
        return (found if kind == "v2" else found + 1 & (1 << part.bits) - 1).t()

    return zeros
