"""Which patterns of a checkpoint are refused because matching them could take very long."""

from __future__ import annotations

import re
import time

import pytest

from loadmaster_hookspecs.errors import PlanError
from loadmaster_plugins.gptq.rules import Rule, applying
from loadmaster_plugins.patterns import LONGEST_NAME, Expression, takes_long, tried_in_time

HARMLESS = [
    r".*\.18\..*gate.*",
    r".*layers\.(\d+)\.mlp\.(gate|up|down)_proj",
    r"model\.layers\.[0-9*+]+\.(self_attn|mlp)",
    r".*\.(?:1[0-9]|2[0-9]|3[01])\..*",
    r"(?!.*lm_head).*down_proj",
    r"a\*\?\{1,2\}\|b\(",
    r"a{100}",
    "|".join(f"model.layers.{number}" for number in range(32)),
]

LONG = [
    ".*a.*b.*c.*d.*e",
    r".*\\.*\\.*\\.*\\.*",
    "(a+)+",
    "(a|b)*",
    "(a){2,}",
    30 * "a?" + 30 * "a",
    30 * "a??" + 30 * "a",
    30 * r"\*?" + 30 * r"\*",
    30 * "(a|.)" + "b",
    30 * "(?:a|.)" + "b",
    10 * "(a|b|c|d|e|f|g|h)",
    1001 * "a",
    "(?x)(a+) +",
    "(?ix: (a+) + )",
]


@pytest.mark.parametrize("pattern", HARMLESS)
def test_what_people_write_is_accepted_and_quick(pattern: str) -> None:
    start = time.process_time()
    re.compile(pattern).match("model.layers.17.self_attn." + (LONGEST_NAME - 26) * "a")
    assert time.process_time() - start < 1
    assert not takes_long(pattern)


@pytest.mark.parametrize("pattern", LONG)
def test_what_takes_long_is_refused(pattern: str) -> None:
    assert takes_long(pattern)


def test_a_name_too_long_to_be_matched_is_refused() -> None:
    rules = (Rule(pattern=".*a.*a.*a.*b"),)
    assert applying(rules, 100 * "a") is None
    with pytest.raises(PlanError, match="too long to look for its rule"):
        applying(rules, (LONGEST_NAME + 1) * "a")
    assert applying((), (LONGEST_NAME + 1) * "a") is None


def test_a_trial_says_whether_names_are_matched_in_time() -> None:
    names = ["model.layers.17.self_attn.q_proj", 40 * "a"]
    assert tried_in_time([Expression("(a+)+$", whole=False), Expression("(a|b)+", whole=True)], names)
    assert not tried_in_time([Expression("(a+)+$", whole=False)], [*names, 40 * "a" + "!"])
