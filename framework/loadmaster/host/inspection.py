"""Judges a plugin before it is registered: its contract version, its hooks, their names and arguments."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Iterable, Mapping

import pluggy

from loadmaster.host.info import Status
from loadmaster_hookspecs import API_VERSION, PROJECT
from loadmaster_hookspecs.specs import ObserverSpecs, RegistrationSpecs

VERSION_ATTRIBUTE = "loadmaster_api_version"
"""Optional attribute of a plugin: the contract version it was written for."""


class UnfitPlugin(Exception):
    """A plugin cannot be used; carries the status to record and the reason to show."""

    def __init__(self, reason: str, status: Status = "failed") -> None:
        super().__init__(reason)
        self.reason = reason
        self.status: Status = status


def new_manager() -> pluggy.PluginManager:
    """Return an empty pluggy manager that knows every hook of the contract."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(RegistrationSpecs)
    manager.add_hookspecs(ObserverSpecs)
    return manager


def register(manager: pluggy.PluginManager, plugin: object, name: str) -> tuple[str, ...]:
    """Register `plugin` under `name` and return the hooks it implements, sorted.

    Raises UnfitPlugin, and leaves the manager without the plugin, when it is a class, was written for another contract version,
    implements an unknown hook, or declares arguments that a hook does not have.
    """
    _check_kind(plugin)
    _check_version(plugin)
    hooks = _implemented(manager, plugin)
    if (other := manager.get_name(plugin)) is not None:
        raise UnfitPlugin(f"it is the same object as plugin {other!r}")
    try:
        manager.register(plugin, name)
    except pluggy.PluginValidationError as error:
        if manager.has_plugin(name):  # pluggy before 1.7 keeps the hooks that it had accepted before the wrong one
            manager.unregister(name=name)
        raise UnfitPlugin(" ".join(str(error).split())) from error
    return hooks


def source_file(plugin: object) -> str:
    """Return the file that a module, or the class of an object, lies in; empty when there is none."""
    module = plugin if inspect.ismodule(plugin) else sys.modules.get(type(plugin).__module__)
    return getattr(module, "__file__", None) or ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the known name closest to `name`, or an empty string when none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _check_kind(plugin: object) -> None:
    if isinstance(plugin, type):
        raise UnfitPlugin(f"{plugin.__qualname__} is a class; a plugin is a module or an instance")


def _check_version(plugin: object) -> None:
    declared = getattr(plugin, VERSION_ATTRIBUTE, API_VERSION)
    if declared != API_VERSION:
        reason = f"written for contract version {declared!r}; this loadmaster has version {API_VERSION}"
        raise UnfitPlugin(reason, "incompatible")


def _implemented(manager: pluggy.PluginManager, plugin: object) -> tuple[str, ...]:
    known = {name for name in vars(manager.hook) if not name.startswith("_")}
    hooks = set()
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        if options is None:
            _check_marked(plugin, attribute, known)
            continue
        hook = options.get("specname") or attribute
        if hook in known:
            _check_plain(hook, options)
            hooks.add(hook)
        elif not options.get("optionalhook"):
            hint = did_you_mean(hook, known)
            raise UnfitPlugin(f"unknown hook {hook!r}" + (f"; {hint}" if hint else ""))
    return tuple(sorted(hooks))


def _check_marked(plugin: object, attribute: str, known: set[str]) -> None:
    if attribute in known and inspect.isroutine(inspect.getattr_static(plugin, attribute, None)):
        raise UnfitPlugin(f"{attribute} is not marked with @hookimpl")


def _check_plain(hook: str, options: Mapping[str, object]) -> None:
    # Every implementation is called by itself, so there is nothing that a wrapper could wrap.
    if options.get("wrapper") or options.get("hookwrapper"):
        raise UnfitPlugin(f"{hook} is a hook wrapper; loadmaster calls every implementation by itself")
