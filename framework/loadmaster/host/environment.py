"""Which plugins may take part: choices of the environment, the command line and Python callers, as one record.

This is the only place that reads the environment variables about plugins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from loadmaster_hookspecs import PROJECT, UsageError

ALLOW_VARIABLE: Final = "LOADMASTER_PLUGINS"
"""Third-party plugins to use, comma separated; set but empty: none. Unset: all that are installed."""

BLOCK_VARIABLE: Final = "LOADMASTER_DISABLE_PLUGINS"
"""Plugins to leave out, comma separated; first-party ones too."""

_BLOCKING_PREFIX: Final = "no:"


def canonical(name: str) -> str:
    """Return `name` as names are compared here: lower case, with `-` for every run of `-`, `_` and `.`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_first_party(distribution: str) -> bool:
    """Return whether the plugins of `distribution` belong to loadmaster itself."""
    return canonical(distribution) == PROJECT


class PluginSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which plugins a host uses. Every name is an entry-point name or a distribution name.

    `allowed` limits third-party plugins to those named (None: no limit, empty: none) and never removes first-party ones;
    `blocked` removes any plugin; `required` lists plugins without which the host refuses to be built.
    """

    allowed: tuple[str, ...] | None = None
    blocked: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> PluginSelection:
        """Return what `LOADMASTER_PLUGINS` and `LOADMASTER_DISABLE_PLUGINS` say in `environ` (default: this process's)."""
        variables = os.environ if environ is None else environ
        allowed = variables.get(ALLOW_VARIABLE)
        return cls(
            allowed=None if allowed is None else _split(allowed),
            blocked=_split(variables.get(BLOCK_VARIABLE, "")),
        )

    def choose(self, names: Sequence[str] = (), *, no_plugins: bool = False) -> PluginSelection:
        """Return this selection changed by the command line, which wins over the environment.

        Args:
            names: values of `-p`: `NAME` demands a plugin, whatever was blocked or allowed before; `no:NAME` blocks it.
            no_plugins: first-party plugins only, apart from those that `names` demands.

        Raises UsageError for an empty name and for a name that is demanded and blocked at once.
        """
        blocked = tuple(name.removeprefix(_BLOCKING_PREFIX) for name in names if name.startswith(_BLOCKING_PREFIX))
        required = tuple(name for name in names if not name.startswith(_BLOCKING_PREFIX))
        _refuse_contradictions(required, blocked)
        allowed = () if no_plugins else self.allowed
        return PluginSelection(
            allowed=None if allowed is None else _merge(allowed, required),
            blocked=_merge(_without(self.blocked, required), blocked),
            required=_merge(_without(self.required, blocked), required),
        )

    def exclusion(self, name: str, distribution: str) -> str:
        """Return why the plugin `name` of `distribution` is left out, or an empty string when it takes part."""
        own = {canonical(name), canonical(distribution)}
        for blocked in self.blocked:
            if canonical(blocked) in own:
                return f"blocked as {blocked!r} (-p no:{blocked} or {BLOCK_VARIABLE})"
        if self.allowed is None or is_first_party(distribution) or own & set(map(canonical, self.allowed)):
            return ""
        return f"not among the allowed plugins (--no-plugins or {ALLOW_VARIABLE})"

    def unmatched(self, known: Iterable[str]) -> tuple[str, ...]:
        """Return the allowed and blocked names that are none of the `known` entry-point and distribution names."""
        names = set(map(canonical, known))
        return tuple(name for name in _merge(self.allowed or (), self.blocked) if canonical(name) not in names)


def _split(value: str) -> tuple[str, ...]:
    return tuple(name for part in value.split(",") if (name := part.strip()))


def _merge(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _without(names: Sequence[str], removed: Sequence[str]) -> tuple[str, ...]:
    gone = set(map(canonical, removed))
    return tuple(name for name in names if canonical(name) not in gone)


def _refuse_contradictions(required: Sequence[str], blocked: Sequence[str]) -> None:
    if not all((*required, *blocked)):
        raise UsageError("LM-PLUGIN-CHOICE", "-p needs the name of a plugin", hints=("-p NAME or -p no:NAME",))
    both = set(map(canonical, required)) & set(map(canonical, blocked))
    if both:
        name = min(both)
        raise UsageError(
            "LM-PLUGIN-CHOICE",
            f"plugin {name!r} is demanded and blocked at once",
            hints=(f"give either -p {name} or -p no:{name}",),
        )
