"""Passes events to observer plugins and leaves out those that fail."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pluggy

from loadmaster.host.attribution import one_line
from loadmaster.host.info import PluginInfo
from loadmaster_hookspecs.events import Event

_log = logging.getLogger(__name__)


class Observers:
    """The plugins that implement `loadmaster_event`, called in pluggy's order."""

    def __init__(self, manager: pluggy.PluginManager, plugins: Mapping[str, PluginInfo]) -> None:
        implementations: list[pluggy.HookImpl] = manager.hook.loadmaster_event.get_hookimpls()
        self._listening = [(plugins[each.plugin_name], each) for each in reversed(implementations)]

    def emit(self, event: Event) -> None:
        """Tell every observer about `event`. One that raises is reported once, as a warning, and not called again."""
        for observer in tuple(self._listening):
            plugin, implementation = observer
            try:
                implementation.function(*(event for _ in implementation.argnames))
            except (Exception, SystemExit) as error:  # noqa: BLE001  boundary: code of a plugin, which must not stop a load
                self._listening.remove(observer)
                _log.warning("observer plugin %s failed and is left out: %s", plugin.label, one_line(error))
