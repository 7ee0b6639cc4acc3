"""Rebuilds the parent's host inside a worker and refuses to go on when the worker finds other plugins."""

from __future__ import annotations

import pkgutil

from loadmaster.host.attribution import one_line
from loadmaster.host.environment import PluginSelection
from loadmaster.host.host import PluginHost
from loadmaster.host.manifest import differences, mismatch
from loadmaster_hookspecs.executors import HostRecord


def rebuild(record: HostRecord) -> PluginHost:
    """Return a host of this process with the plugins that `record` lists. The environment's choices play no part.

    Raises PluginError LM-PLUGIN-MANIFEST that lists every difference: a plugin that is missing, fails here, was added, or has
    another distribution, version or entry-point value; a passed plugin that cannot be imported here; another contract version.
    """
    problems = {name: _import_problem(name) for name in record.extra}
    host = PluginHost(
        PluginSelection(allowed=record.allowed, blocked=record.blocked),
        [name for name, problem in problems.items() if not problem],
    )
    unusable = [f"{name}: passed in the parent, not importable here ({why})" for name, why in problems.items() if why]
    found = (*differences(record, host.plugins), *unusable)
    if found:
        raise mismatch(found)
    return host


def _import_problem(name: str) -> str:
    try:
        pkgutil.resolve_name(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  boundary: importing code of a plugin
        return one_line(error)
    return ""
