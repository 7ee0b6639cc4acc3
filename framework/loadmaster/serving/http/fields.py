"""From the JSON text of a body to a record: every field is known, or refused by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from loadmaster.serving.http.errors import ApiError, bad_request
from loadmaster.serving.http.plain_words import in_plain_words

Fields = TypeVar("Fields", bound=msgspec.Struct)

WITHOUT_EFFECT: Final = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Fields that describe a request and change nothing about its answer."""

UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields of the OpenAI API that are not implemented, with the values that ask for nothing and are therefore accepted."""

_PLACE = re.compile(r"(?P<why>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?", re.DOTALL)
_NAMED = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>[^`]*)`")


def decode(body: bytes, record: type[Fields]) -> Fields:
    """Return the record that `body` holds. Raises ApiError 400 that names the field which is wrong.

    Fields that are null count as left out, as in the OpenAI API.
    """
    given = _object(body)
    known = {name: value for name, value in given.items() if value is not None and not _refuse(name, value, record)}
    try:
        return msgspec.convert(_without_nulls(known), type=record)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", None, "invalid_json") from None
    if not isinstance(given, dict):
        raise bad_request(f"the body is a JSON {type(given).__name__}, not an object", None, "invalid_json")
    return given


def _refuse(name: str, value: object, record: type[msgspec.Struct]) -> bool:
    """Return whether a field is accepted and dropped. Raises ApiError for one that is unknown or not implemented."""
    if name in record.__struct_fields__:
        return False
    if name in WITHOUT_EFFECT or value in UNSUPPORTED.get(name, ()):
        return True
    if name in UNSUPPORTED:
        raise bad_request(f"{name!r} is not supported by this server", name, "unsupported_parameter")
    raise bad_request(f"unknown parameter: {name!r}", name, "unknown_parameter")


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the nulls of messages left out: clients send back what they got, with its empty fields."""
    messages = given.get("messages")
    if not isinstance(messages, list):
        return given
    return given | {"messages": [_set_fields(message) for message in messages]}


def _set_fields(message: object) -> object:
    return {name: value for name, value in message.items() if value is not None} if isinstance(message, dict) else message


def _invalid(text: str) -> ApiError:
    """Return what a validation error of msgspec says, with the field's path as `param`."""
    found = _PLACE.fullmatch(text)
    why, path = (found["why"], found["path"] or "") if found else (text, "")
    named = _NAMED.fullmatch(why)
    if named:
        param = f"{path}.{named['name']}" if path else named["name"]
        missing = named["what"] == "missing required"
        message = f"{'missing required' if missing else 'unsupported'} parameter: {param!r}"
        return bad_request(message, param, "missing_required_parameter" if missing else "unsupported_parameter")
    code = "invalid_type" if ", got " in why else "invalid_value"
    return bad_request(f"invalid {path or 'body'}: {in_plain_words(why)}", path or None, code)
