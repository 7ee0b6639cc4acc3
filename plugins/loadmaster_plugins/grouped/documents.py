"""Where a checkpoint says how it is quantised: its configuration, that of its text part, or a small file beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.models import FileReader

NESTED: Final = ("text_config", "llm_config", "language_config")
"""Where configurations of models with several parts keep that of the language model."""

LARGEST: Final = 1 << 20
"""Bytes of a settings file. Real ones have a few hundred, or some ten thousand with a rule per module."""


class Statement(NamedTuple):
    """What one document says, and where: `config.json`, `config.json text_config`, `quantize_config.json`."""

    where: str
    settings: Mapping[str, Any]


def stated(config: Mapping[str, Any], read: FileReader, files: Sequence[str]) -> Statement | None:
    """Return the first statement that there is, configuration first. Raises PlanError for a file that is no JSON object."""
    for where, part in _parts(config):
        settings = part.get("quantization_config")
        if isinstance(settings, Mapping) and settings:
            return Statement(where, settings)
    for name in files:
        raw = read(name)
        if raw is not None:
            return Statement(name, _parsed(name, raw))
    return None


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "config.json", config
    for key in NESTED:
        part = config.get(key)
        if isinstance(part, Mapping):
            yield f"config.json {key}", part


def _parsed(name: str, raw: bytes) -> Mapping[str, Any]:
    if len(raw) > LARGEST:
        raise _unreadable(name, f"{len(raw)} bytes, the limit is {LARGEST}")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _unreadable(name, f"not JSON: {type(error).__name__}") from None
    if not isinstance(value, dict):
        raise _unreadable(name, f"a JSON {type(value).__name__} where an object is expected")
    return value


def _unreadable(name: str, why: str) -> PlanError:
    return PlanError(
        "LM-QUANT-SETTINGS", "a file with the settings of the quantisation cannot be read", where={"file": name}, why=why
    )


class Reader(NamedTuple):
    """Typed access to one statement. Errors carry the code `LM-<area>-SETTINGS` and name the setting."""

    area: str
    statement: Statement

    def number(self, *names: str) -> int | None:
        """Return a whole number under the first name that is there."""
        for name in names:
            value = self.statement.settings.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.refusal(name, value, "a whole number is expected")
            return value
        return None

    def flag(self, name: str) -> bool | None:
        """Return true or false."""
        value = self.statement.settings.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise self.refusal(name, value, "true or false is expected")

    def text(self, *names: str) -> str:
        """Return the lower-case text under the first name that is there, or an empty one."""
        for name in names:
            value = self.statement.settings.get(name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise self.refusal(name, value, "a text is expected")
            return value.lower()
        return ""

    def group_size(self, *names: str) -> int | None:
        """Return a group size in columns: positive, or -1 for a whole row."""
        value = self.number(*names)
        if value is not None and value != -1 and value <= 0:
            raise self.refusal(names[0], value, "a positive number of columns is expected, or -1 for all of them")
        return value

    def refusal(self, name: str, value: object, why: str, *hints: str) -> PlanError:
        """Return the error for a setting that makes no sense or cannot be read."""
        shown = ascii(value)
        return PlanError(
            f"LM-{self.area}-SETTINGS",
            f"a setting of the {self.area} quantisation cannot be used",
            where={"file": self.statement.where, "setting": f"{name} = {shown[:80]}"},
            why=why,
            hints=hints,
        )
