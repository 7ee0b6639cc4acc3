"""Regular expressions in adapter_config.json: each must be one, and must be matched in bounded time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from loadmaster_plugins.patterns import LONGEST_NAME, TRIAL_SECONDS, Expression, takes_long, tried_in_time
from loadmaster_plugins.peft_files.config import invalid

_WHOLE: Final = ("target_modules", "exclude_modules", "feedforward_modules")
"""Fields that are an expression where they are one string; lists have names."""

_AROUND: Final[Mapping[str, tuple[str, str]]] = {
    "modules_to_save": (r"(^|.*\.)", r"($|\..*)"),
    "layers_pattern": (r"(?:^|.*?\.)", r"\.(?P<idx>\d+)\."),
    "rank_pattern": (r"(.*\.)?(", ")$"),
    "alpha_pattern": (r"(.*\.)?(", ")$"),
}
"""Fields with several expressions, and what peft puts around each."""


class _Found(NamedTuple):
    field: str
    given: str
    expression: Expression


def check_expressions(config: Any) -> None:
    """Raise PlanError LM-ADAPTER-CONFIG where a field has an expression that is none: peft finds out only in its layers."""
    for field, given, expression in _expressions(config):
        try:
            re.compile(expression.text)
        except (re.error, OverflowError, RecursionError) as error:
            raise invalid(f"{field} has {given!r}, which is no regular expression: {error}") from error


def check_times(config: Any, names: Sequence[str]) -> None:
    """Raise PlanError LM-ADAPTER-CONFIG where matching the names of modules with an expression could take very long."""
    long_names = any(len(name) > LONGEST_NAME for name in names)
    doubtful = [each for each in _expressions(config) if long_names or takes_long(each.expression.text)]
    if not doubtful or tried_in_time([each.expression for each in doubtful], names):
        return
    field, given, _ = doubtful[0]
    others = f", or one of {len(doubtful) - 1} others," if len(doubtful) > 1 else ""
    raise invalid(
        f"{field} has {given!r}, which{others} takes more than {TRIAL_SECONDS} s to be matched with {len(names)} names",
        "write it without repetitions inside of repetitions, or as a list of names",
    )


def _expressions(config: Any) -> Iterator[_Found]:
    for field in _WHOLE:
        value = getattr(config, field, None)
        if isinstance(value, str):
            yield _Found(field, value, Expression(value, whole=True))
    for field, (before, behind) in _AROUND.items():
        value = getattr(config, field, None) or ()
        for given in (value,) if isinstance(value, str) else value:
            yield _Found(field, given, Expression(f"{before}{given}{behind}", whole=False))
