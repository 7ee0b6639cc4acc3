"""Collects what plugins register, one hook implementation at a time, and remembers who provided what."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar, cast

import msgspec
import pluggy

from loadmaster.host.attribution import attributed
from loadmaster.host.families import Family
from loadmaster.host.info import PluginInfo
from loadmaster.host.inspection import did_you_mean
from loadmaster_hookspecs import PluginError

T = TypeVar("T")


class Provided(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """An object that a plugin registered, the key it is looked up by, and the plugin."""

    key: str
    value: T
    plugin: PluginInfo


class Registry:
    """The registered objects by family and key. A family is collected when it is first asked for, then kept.

    May be used by several threads: a hook is called once all the same.

    Every method raises PluginError when a hook fails, returns something else than a sequence of fitting objects, or when two
    plugins provide objects of one key.
    """

    def __init__(self, manager: pluggy.PluginManager, plugins: Sequence[PluginInfo]) -> None:
        self._manager = manager
        self._plugins = tuple(plugins)
        self._families: dict[str, Mapping[str, Provided[Any]]] = {}
        self._collecting = threading.RLock()

    def family(self, family: Family[T]) -> Mapping[str, Provided[T]]:
        """Return everything that is registered in a family, by key, sorted."""
        with self._collecting:
            if family.hook not in self._families:
                self._families[family.hook] = _by_key(family, self._collect(family))
        return cast("Mapping[str, Provided[T]]", self._families[family.hook])

    def values(self, family: Family[T]) -> dict[str, T]:
        """Return the objects of a family by key, sorted."""
        return {key: provided.value for key, provided in self.family(family).items()}

    def get(self, family: Family[T], key: str) -> T:
        """Return one object. Raises PluginError that lists the known keys and the plugins that are left out."""
        known = self.family(family)
        if key in known:
            return known[key].value
        raise PluginError(
            "LM-PLUGIN-UNKNOWN",
            f"no {family.noun} is called {key!r}",
            why=f"known: {', '.join(known) or 'none'}",
            hints=[hint for hint in (did_you_mean(key, known), self.left_out()) if hint],
        )

    def attributed(self, value: object, call: str, *expected: type[Exception]) -> AbstractContextManager[None]:
        """Return a context in which an exception is attributed to the plugin that provided `value`, if one did.

        Exceptions of the `expected` types pass unchanged.
        """
        for hook, collected in tuple(self._families.items()):
            for provided in collected.values():
                if provided.value is value:
                    return attributed(provided.plugin, hook, call, expected)
        return nullcontext()

    def left_out(self) -> str:
        """Return one line about the plugins that are not active, which may be what is missing; empty when all are."""
        out = [f"{info.label}, {info.status}" for info in self._plugins if info.status != "active"]
        return f"plugins that take no part: {'; '.join(out)} (see loadmaster plugins list)" if out else ""

    def _collect(self, family: Family[T]) -> Sequence[Provided[T]]:
        active = {info.name: info for info in self._plugins if info.status == "active"}
        implementations: list[pluggy.HookImpl] = getattr(self._manager.hook, family.hook).get_hookimpls()
        return [
            provided
            for implementation in implementations
            for provided in _call(family, implementation, active[implementation.plugin_name])
        ]


def _call(family: Family[T], implementation: pluggy.HookImpl, plugin: PluginInfo) -> list[Provided[T]]:
    with attributed(plugin, family.hook):
        result = implementation.function()
    if not isinstance(result, Sequence) or isinstance(result, str | bytes):
        raise wrong_result(plugin, family.hook, f"returned {_described(result)} instead of a sequence of objects")
    return [_provided(family, value, plugin) for value in result]


def _provided(family: Family[T], value: T, plugin: PluginInfo) -> Provided[T]:
    if isinstance(value, type):
        raise wrong_result(plugin, family.hook, f"returned the class {value.__qualname__} instead of an instance")
    with attributed(plugin, family.hook):
        missing = [member for member in family.members if not hasattr(value, member)]
        if missing:
            problem = f"returned {_described(value)} without {', '.join(missing)}"
            raise wrong_result(plugin, family.hook, problem)
        name = cast("Any", value).name
        if not isinstance(name, str) or not name:
            raise wrong_result(plugin, family.hook, f"returned {_described(value)} whose name is {name!r}")
        return Provided(key=family.key(value) if family.key else name, value=value, plugin=plugin)


def _by_key(family: Family[T], provided: Sequence[Provided[T]]) -> dict[str, Provided[T]]:
    groups: dict[str, list[Provided[T]]] = {}
    for each in provided:
        groups.setdefault(each.key, []).append(each)
    for key, rivals in groups.items():
        if len(rivals) > 1:
            raise PluginError(
                "LM-PLUGIN-CONFLICT",
                f"more than one {family.noun} is called {key!r}",
                where={"hook": family.hook},
                why=f"{key!r} provided by {', '.join(rival.plugin.label for rival in rivals)}",
                hints=choices([rival.plugin for rival in rivals]),
            )
    return {key: groups[key][0] for key in sorted(groups)}


def choices(plugins: Sequence[PluginInfo]) -> list[str]:
    """Return the ways to settle a contest between plugins, as hints."""
    return list(dict.fromkeys(plugin.remedy for plugin in plugins))


def wrong_result(plugin: PluginInfo, hook: str, problem: str) -> PluginError:
    """Return the error for a plugin whose hook, or whose object, gave something that the contract does not allow."""
    return PluginError(
        "LM-PLUGIN-RESULT",
        f"plugin {plugin.label} {problem}",
        where={**plugin.location, "hook": hook},
        hints=(plugin.remedy,),
    )


def _described(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__qualname__}"
