"""Counts by adapter stay few, whatever names clients think up."""

from __future__ import annotations

from loadmaster.serving.counters import MOST_NAMES, Counters


def test_names_beyond_the_limit_take_the_place_of_the_least_used() -> None:
    counters = Counters()
    for name in ("", "busy", "busy", "", "it"):
        counters.begun(name, 3)
    for number in range(3 * MOST_NAMES):
        counters.begun(f"new-{number}", 1)
        counters.cached(f"new-{number}", 1)
    found = {each.name: each for each in counters.adapters()}
    assert len(found) == MOST_NAMES
    assert (found[""].requests, found["busy"].requests, found["busy"].prompt_tokens) == (2, 2, 6)
    assert found[f"new-{3 * MOST_NAMES - 1}"].cached_tokens == 1
    assert counters.prompt_tokens == 15 + 3 * MOST_NAMES
