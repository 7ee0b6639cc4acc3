"""Plugins that a caller passes by hand, and the import names under which a worker finds the same objects."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Sequence

import msgspec
import pluggy

from loadmaster.host.attribution import one_line, traceback_text
from loadmaster.host.info import PluginInfo
from loadmaster.host.inspection import UnfitPlugin, register, source_file
from loadmaster_hookspecs import PluginError


class ImportName(msgspec.Struct, frozen=True):
    """How another process imports an object (`module` or `module:name`), or the problem that keeps it from doing so."""

    name: str = ""
    problem: str = ""


def load_extras(manager: pluggy.PluginManager, extras: Sequence[object]) -> tuple[PluginInfo, ...]:
    """Register the plugins that a caller passed; a string is the import name (`module` or `module:name`) of one.

    Raises PluginError when one cannot be imported, is unfit, or has the name of another plugin: what was asked for by hand is
    never left out silently.
    """
    return tuple(_load(manager, extra, position) for position, extra in enumerate(extras, start=1))


def import_name(plugin: object) -> ImportName:
    """Return how another process imports `plugin`: a module, or a global of the module that its class lies in."""
    if inspect.ismodule(plugin):
        return _checked(plugin, plugin.__name__)
    home = type(plugin).__module__
    names = [name for name, value in vars(sys.modules[home]).items() if value is plugin] if home in sys.modules else []
    if not names:
        return ImportName(problem=f"no global of module {home!r}, where its class lies, is this object")
    return _checked(plugin, f"{home}:{names[0]}")


def _checked(plugin: object, name: str) -> ImportName:
    if name.partition(":")[0] == "__main__":
        return ImportName(problem="it lies in __main__, which is another module in a worker")
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        return ImportName(problem=f"importing {name!r} fails: {one_line(error)}")
    return ImportName(name) if found is plugin else ImportName(problem=f"importing {name!r} gives another object")


def _load(manager: pluggy.PluginManager, extra: object, position: int) -> PluginInfo:
    if isinstance(extra, str):
        plugin, value = _imported(extra), extra
    else:
        plugin, value = extra, import_name(extra).name
    name = value or f"{type(plugin).__module__}.{type(plugin).__qualname__}#{position}"
    try:
        if manager.has_plugin(name):
            raise UnfitPlugin("another plugin has this name")
        hooks = register(manager, plugin, name)
        if not hooks:
            raise UnfitPlugin("it implements no hook")
    except UnfitPlugin as error:
        raise _unusable(name, error.reason) from error
    except (Exception, SystemExit) as error:  # boundary: attributes of a plugin may be code
        raise _unusable(name, one_line(error), traceback_text(error)) from error
    return PluginInfo(name=name, value=value, module=source_file(plugin), status="active", hooks=hooks)


def _imported(name: str) -> object:
    try:
        return pkgutil.resolve_name(name)
    except (Exception, SystemExit) as error:  # boundary: importing code of a plugin
        raise _unusable(name, f"importing it fails: {one_line(error)}", traceback_text(error)) from error


def _unusable(name: str, reason: str, traceback: str = "") -> PluginError:
    return PluginError(
        "LM-PLUGIN-INVALID",
        f"plugin {name!r}, passed by the caller, cannot be used",
        where={"plugin": name},
        why=reason,
        traceback=traceback,
    )
