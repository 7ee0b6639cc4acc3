"""Adapters as users name them: folders by name, opened in the host from headers and configuration alone."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loadmaster_engine.plan.adapter_source import AdapterRequest, open_adapter
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.errors import LoadmasterError, UsageError


def open_adapters(host: PluginHost, paths: Mapping[str, str | os.PathLike[str]]) -> tuple[AdapterRequest, ...]:
    """Return the adapters at `paths`. Raises UsageError for a name that is empty, and whatever opening one raises."""
    opened = []
    for name, path in paths.items():
        if not name or name != name.strip():
            raise UsageError("LM-USAGE-ADAPTER", f"an adapter cannot be called {name!r}")
        try:
            opened.append(open_adapter(host, name, os.fspath(path)))
        except LoadmasterError as error:
            raise error.located(adapter=name) from error
    return tuple(opened)
