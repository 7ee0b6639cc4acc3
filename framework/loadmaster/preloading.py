"""What planner and workers import, found out as early as can be: imports take longer than everything before them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.run.messages import PLANNER, WORKER
from loadmaster_hookspecs.errors import LoadmasterError
from loadmaster_hookspecs.executors import HostRecord

CONFIG: Final = "config.json"
CONFIG_BYTES: Final = 1 << 20
"""A larger configuration is left to the index, which judges it."""


def modules_for(host: PluginHost, record: HostRecord, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that planner and workers of a model need, the slowest first.

    Raises PlanError when no family knows the model, PluginError when the family fails.
    """
    family = host.match_family(config)
    with host.attributed(family, f"preload of model family {family.name}"):
        wanted = family.preload(config)
    return (*wanted, *(name.partition(":")[0] for name in (record.factory, PLANNER, WORKER)))


def early_modules(host: PluginHost, record: HostRecord, path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the same from the configuration's file alone, before anything is judged, or nothing where that does not work.

    Raises nothing that the index and the planner would not raise with better words.
    """
    try:
        config = _configuration(host, path)
        return modules_for(host, record, config) if config else ()
    except (LoadmasterError, OSError, ValueError):
        return ()


def _configuration(host: PluginHost, path: str | os.PathLike[str]) -> dict[str, Any]:
    source = host.open_source(os.fspath(path))
    size = next((entry.size for entry in source.files() if entry.name == CONFIG), 0)
    if not 0 < size <= CONFIG_BYTES:
        return {}
    return msgspec.json.decode(source.read(CONFIG, 0, size), type=dict[str, Any])
