"""GPTQModel's `dynamic` rules: regular expressions that give single modules settings of their own, or leave them out.

A rule is `+:PATTERN` or `PATTERN` with settings, or `-:PATTERN` for modules that are not quantised. Rules with `-:` come
first; of all, the first that matches from the beginning of a module's name holds (source: `dynamic_get` and `QuantizeConfig`
of GPTQModel).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from loadmaster_hookspecs.errors import PlanError
from loadmaster_plugins.grouped.documents import Reader, Statement
from loadmaster_plugins.patterns import LONGEST, LONGEST_NAME, takes_long


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule; `skip` says that the modules are not quantised, None that the general setting holds."""

    pattern: str
    skip: bool = False
    bits: int | None = None
    group_size: int | None = None
    sym: bool | None = None
    desc_act: bool | None = None


def read_rules(reader: Reader) -> tuple[Rule, ...]:
    """Return the rules in the order in which they hold.

    Raises PlanError LM-GPTQ-SETTINGS for patterns that are no regular expressions, or could take very long to match.
    """
    dynamic = reader.statement.settings.get("dynamic")
    if dynamic is None:
        return ()
    if not isinstance(dynamic, dict):
        raise reader.refusal("dynamic", dynamic, "an object from patterns to settings is expected")
    rules = [_rule(reader, key, changes) for key, changes in dynamic.items()]
    return tuple(sorted(rules, key=lambda rule: not rule.skip))


def applying(rules: Sequence[Rule], name: str) -> Rule | None:
    """Return the rule that holds for a module, if any. Raises PlanError LM-GPTQ-SETTINGS for a name too long to be matched."""
    if rules and len(name) > LONGEST_NAME:
        raise PlanError(
            "LM-GPTQ-SETTINGS",
            "a module's name is too long to look for its rule",
            where={"setting": "dynamic", "module": name[:80]},
            why=f"{len(name)} characters, at most {LONGEST_NAME} can be matched in bounded time",
        )
    return next((rule for rule in rules if _compiled(rule.pattern).match(name)), None)


def _rule(reader: Reader, key: str, changes: object) -> Rule:
    skip = key.startswith("-:")
    pattern = (key.removeprefix("-:") if skip else key.removeprefix("+:")).removesuffix(".*")
    if takes_long(pattern):
        why = f"at most {LONGEST} characters, few alternatives and repetitions, none of a group, can be matched in bounded time"
        raise reader.refusal("dynamic", key, why, "write the rule as several")
    try:
        _compiled(pattern)
    except re.error as error:
        raise reader.refusal("dynamic", key, f"no regular expression: {error}") from None
    if skip:
        return Rule(pattern=pattern, skip=True)
    if not isinstance(changes, dict):
        raise reader.refusal("dynamic", key, "an object with the settings of the modules is expected")
    said = Reader(reader.area, Statement(f"{reader.statement.where} dynamic", changes))
    return Rule(
        pattern=pattern,
        bits=said.number("bits"),
        group_size=said.group_size("group_size"),
        sym=said.flag("sym"),
        desc_act=said.flag("desc_act"),
    )


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
