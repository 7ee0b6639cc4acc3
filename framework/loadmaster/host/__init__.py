"""The plugin host: which plugins take part, what they provide, and the same host again in every worker."""

from __future__ import annotations

from loadmaster.host.environment import PluginSelection
from loadmaster.host.host import PluginHost
from loadmaster.host.info import PluginInfo
from loadmaster.host.live import live, live_record
from loadmaster.host.rebuild import rebuild

__all__ = ["PluginHost", "PluginInfo", "PluginSelection", "live", "live_record", "rebuild"]
