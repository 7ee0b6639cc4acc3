"""Adapters as users name them: folders by name, opened in the host from headers and configuration alone."""

from __future__ import annotations

import os
from collections.abc import Mapping

from loadmaster_engine.plan.adapter_source import AdapterRequest, open_adapter
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.errors import LoadmasterError, UsageError


def open_adapters(host: PluginHost, paths: Mapping[str, str | os.PathLike[str]]) -> tuple[AdapterRequest, ...]:
    """Return the adapters at `paths`. Raises UsageError for a name that is empty, and whatever opening one raises."""
    return tuple(open_named(host, name, path) for name, path in paths.items())


def open_named(host: PluginHost, name: str, path: str | os.PathLike[str]) -> AdapterRequest:
    """Return the adapter at `path`. Raises as `open_adapters` does."""
    if not isinstance(name, str) or not name or name != name.strip():
        raise UsageError("LM-USAGE-ADAPTER", f"an adapter cannot be called {name!r}")
    try:
        return open_adapter(host, name, os.fspath(path))
    except LoadmasterError as error:
        raise error.located(adapter=name) from error
