"""The goals with a 4-bit model: load beside the floor, bytes in memory beside the plan, tokens per second beside others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from bench.quantised_names import INT4_MODES, RANKS, bf16_name, dequant_name, floor_name, int4_name
from bench.records import Goal, Measurement
from bench.summary import Rounds, Value, detail, seconds

LOAD: Final = seconds("load")
RATE: Final = detail("tokens_per_second")

LOAD_LIMIT: Final = 1.3
AMPLIFICATION_LIMIT: Final = 1.01
MEMORY_LIMIT: Final = 0.02


def quantised_goals(measurements: Sequence[Measurement]) -> tuple[Goal, ...]:
    """Return all goals in order."""
    rounds = Rounds(measurements)
    return (*_loads(rounds), *_amplification(measurements), *_memory(rounds), *_decode(rounds))


def _loads(rounds: Rounds) -> Iterator[Goal]:
    for tp in RANKS:
        yield _ratio(
            rounds, f"torch-int4, TP {tp}: load and repacking beside the floor", int4_name(tp), floor_name(tp), LOAD, LOAD_LIMIT
        )
        yield _ratio(
            rounds, f"dequant, mapped, TP {tp}: load beside the floor", dequant_name(tp), floor_name(tp), LOAD, LOAD_LIMIT
        )


def _amplification(measurements: Sequence[Measurement]) -> Iterator[Goal]:
    for tp in RANKS:
        names = [*(int4_name(tp, mode) for mode in INT4_MODES), dequant_name(tp)]
        told = [
            (one.detail["amplification"], one.contestant)
            for one in measurements
            if one.contestant in names and not one.error and "amplification" in one.detail
        ]
        worst, name = max(told, default=(None, ""))
        yield Goal(
            text=f"TP {tp}: node amplification",
            limit=AMPLIFICATION_LIMIT,
            measured=worst,
            how=f"worst: {name}" if name else "",
        )


def _memory(rounds: Rounds) -> Iterator[Goal]:
    """Yield how far the bytes by which all processes grow are off the plan's, and the same of what 4 bits save."""
    for tp in RANKS:
        grown, planned = (_median(rounds, int4_name(tp), name) for name in ("grown_bytes", "planned_bytes"))
        plain_grown, plain_planned = (_median(rounds, bf16_name(tp), name) for name in ("grown_bytes", "planned_bytes"))
        yield Goal(
            text=f"torch-int4, TP {tp}: growth of all processes off the plan's bytes",
            limit=MEMORY_LIMIT,
            measured=abs(grown / planned - 1) if grown and planned else None,
            how=f"{grown / 1e6:.0f} of {planned / 1e6:.0f} MB planned" if grown and planned else "",
        )
        known = grown and planned and plain_grown and plain_planned
        saved, promised = (plain_grown or 0) - (grown or 0), (plain_planned or 0) - (planned or 0)
        yield Goal(
            text=f"torch-int4, TP {tp}: bytes saved against bfloat16, off the plan's",
            limit=MEMORY_LIMIT,
            measured=abs(saved / promised - 1) if known else None,
            how=f"{saved / 1e6:.0f} of {promised / 1e6:.0f} MB planned" if known else "",
        )


def _decode(rounds: Rounds) -> Iterator[Goal]:
    for tp in RANKS:
        for name in (bf16_name(tp), dequant_name(tp), "gptqmodel" if tp == 1 else "", f"vllm-tp{tp}"):
            if name:
                text = f"torch-int4, TP {tp}: tokens per second beside {name}"
                yield _ratio(rounds, text, int4_name(tp), name, RATE, 1.0, at_least=True)


def _ratio(rounds: Rounds, text: str, name: str, baseline: str, value: Value, limit: float, *, at_least: bool = False) -> Goal:
    measured = rounds.ratio(name, baseline, "hot", value)
    return Goal(text=text, limit=limit, measured=measured, at_least=at_least, how=f"{name} / {baseline}")


def _median(rounds: Rounds, name: str, figure: str) -> float | None:
    found = [*rounds.values(name, "hot", detail(figure)).values()]
    return median(found) if found else None
