"""What is expected of a field, in words that need no knowledge of Python: msgspec names its types and shows patterns."""

from __future__ import annotations

import re
from typing import Final

from loadmaster.serving.http.requests import NAME_PATTERN

_EXPECTED: Final = re.compile(r"Expected `(?P<types>[^`]*)`(?: (?P<rule>[^,]*?))?(?:, got `(?P<got>[^`]*)`)?")

_TYPES: Final = {
    "str": "a text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}

_NAME: Final = f"matching regex {NAME_PATTERN!r}"
_LENGTH: Final = re.compile(r"of length (?P<side>[<>]=) (?P<count>\d+)")
_SIDES: Final = {">=": "at least", "<=": "at most"}


def in_plain_words(why: str) -> str:
    """Return what a validation error of msgspec says. One of an unknown form stays as it is."""
    found = _EXPECTED.fullmatch(why)
    if found is None:
        return why
    types = found["types"].split(" | ")
    words = " or ".join(_TYPES.get(each, each) for each in types)
    rule = found["rule"] or ""
    if length := _LENGTH.fullmatch(rule):
        unit = "characters" if types == ["str"] else "elements"
        words += f" of {_SIDES[length['side']]} {length['count']} {unit}"
    elif rule == _NAME:
        words = "a name without spaces and control characters"
    elif rule:
        words += f" {rule}"
    got = f", not {_TYPES.get(found['got'], found['got'])}" if found["got"] else ""
    return f"{words} is expected{got}"
