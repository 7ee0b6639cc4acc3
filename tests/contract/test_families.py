"""Every family with a tensor-parallel plan works or is refused by name, and the documentation says which."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from family_census import NOT_BUILT, REFUSED, WORKS, documented, examine
from tiny_families import families

REQUIRED: Final = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "glm4",
    "olmo2",
    "gpt_neox",
    "starcoder2",
    "cohere2",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "deepseek_v3",
)


def test_the_table_lists_exactly_the_families_that_ship_a_plan() -> None:
    assert list(documented()) == list(families())


@pytest.mark.parametrize("family", REQUIRED)
def test_the_families_that_people_load_work(family: str) -> None:
    assert documented()[family][1:3] == (WORKS, WORKS)


@pytest.mark.parametrize("family", families())
def test_a_family_does_what_the_table_says(family: str, tmp_path: Path) -> None:
    outcome = examine(family, tmp_path)
    expected = documented()[family]
    assert {outcome.whole, outcome.split} <= {WORKS, REFUSED, NOT_BUILT}, outcome.why
    assert (outcome.whole, outcome.split) == (expected.whole, expected.split)
    if REFUSED in (outcome.whole, outcome.split):
        assert outcome.why == expected.why
