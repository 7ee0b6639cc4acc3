"""The order of runs: a check round, then rounds in which everyone runs once in turn, in every state of the page cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from bench.contestants import Contestant
from bench.records import Condition, Measurement

Run = Callable[[Contestant, Condition, int], Measurement]
Say = Callable[[str], None]


def schedule(
    everyone: Sequence[Contestant], conditions: Sequence[Condition], rounds: int, *, check: bool = True
) -> Iterator[tuple[Contestant, Condition, int]]:
    """Yield who runs in which condition and round. A second start follows its cold one at once.

    Round 0 is the check round; without `check` there is none.
    """
    for contestant in everyone if check else ():
        yield contestant, "hot", 0
    for number in range(1, rounds + 1):
        for condition in conditions:
            for contestant in everyone:
                if contestant.check_only or condition not in contestant.conditions:
                    continue
                yield contestant, condition, number
                if condition == "cold" and contestant.again:
                    yield contestant, "second", number


def run_series(
    plan: Sequence[tuple[Contestant, Condition, int]], run: Run, unavailable: Mapping[str, str], say: Say
) -> list[Measurement]:
    """Run everything and return the measurements in order.

    A contestant whose environment is in `unavailable` gets that error; one that fails in the first round does not run again.
    An interrupt ends the series, and what was measured before it is returned.
    """
    done: list[Measurement] = []
    broken: dict[str, str] = {}
    first = plan[0][2] if plan else 0
    for step, (contestant, condition, number) in enumerate(plan, 1):
        if number > first and contestant.name in broken:
            continue
        begin = time.monotonic()
        if error := unavailable.get(contestant.peer):
            result = Measurement(contestant=contestant.name, condition=condition, round=number, error=error)
        else:
            try:
                result = run(contestant, condition, number)
            except KeyboardInterrupt:
                say("interrupted: what was measured so far is kept")
                break
        done.append(result)
        if result.error and number == first:
            broken[contestant.name] = result.error
        say(f"[{step}/{len(plan)}] round {number} {condition:6} {contestant.name:30} {_outcome(result)}"
            f"  [{time.monotonic() - begin:.0f} s]")  # fmt: skip
    return done


def _outcome(result: Measurement) -> str:
    if result.error:
        return "FAILED: " + result.error.splitlines()[-1]
    shown = ("imported", "load", "touch", "first_token")
    rates = [f"{name}={value:.1f}" for name, value in result.detail.items() if name.startswith("rate_")]
    return " ".join([*(f"{name}={result.seconds[name]:.2f}" for name in shown if name in result.seconds), *rates])
