"""JSON objects from untrusted files: duplicate keys, odd constants and deep nesting are faults, not surprises."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from loadmaster_plugins.hf_safetensors.wording import quoted

DEEPEST: Final = 64
"""Levels of nesting that a document may have; real configurations have fewer than ten."""


TOO_DEEP: Final = f"nested deeper than {DEEPEST} levels"

_NESTING: Final = (dict, list)


class JsonFault(ValueError):
    """Says why a text is not the JSON object it should be."""


def parse_object(raw: bytes, *, lenient: bool = False) -> dict[str, Any]:
    """Return the object that `raw` holds as UTF-8 JSON.

    `lenient` is for configurations: it allows the constants NaN and Infinity, which Python writes into them, and turns whole
    numbers of more than 64 bits into floats, so that every value can be sent to a worker. Raises JsonFault for anything that
    is not one object, and for an object at any depth that has a key twice.
    """
    numbers = {"parse_constant": float, "parse_int": _bounded} if lenient else {"parse_constant": _refuse}
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, **numbers)
    except UnicodeDecodeError as error:
        raise JsonFault(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise JsonFault(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise JsonFault(TOO_DEEP) from None
    except JsonFault:
        raise
    except ValueError as error:  # a number with thousands of digits
        raise JsonFault(f"not JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise JsonFault(f"a JSON {type(value).__name__} where an object is expected")
    if b"\\u" in raw and not _is_text(value):
        raise JsonFault("a text with half of a surrogate pair, which is no character")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; a key that stands twice is a fault."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise JsonFault(f"the key {quoted(twice)} stands twice in one object")
    return unique


def _refuse(constant: str) -> float:
    raise JsonFault(f"the constant {constant} is not JSON")


def _bounded(digits: str) -> int | float:
    """Return the number; as a float if it does not fit 64 bits."""
    number = int(digits) if len(digits) <= 20 else 2**64
    return number if -(2**63) <= number < 2**64 else float(digits)


def _is_text(value: Any) -> bool:
    """Whether all strings in a parsed document can be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_depth(value: dict[str, Any]) -> None:
    """Raise JsonFault when containers are nested in more than `DEEPEST` levels, the outermost one counted."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [
            child for item in level for child in (item.values() if type(item) is dict else item) if type(child) in _NESTING
        ]
        if not level:
            return
    raise JsonFault(TOO_DEEP)
