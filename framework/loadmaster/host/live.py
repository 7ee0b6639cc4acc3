"""Hands ranks that run in the host's own process the very same host, instead of a rebuilt one."""

from __future__ import annotations

import uuid
from typing import Final
from weakref import WeakValueDictionary

from loadmaster.host.host import PluginHost
from loadmaster_hookspecs import PluginError
from loadmaster_hookspecs.executors import HostRecord

FACTORY: Final = "loadmaster.host:live"
"""Where a rank finds the function that returns the host of its own process."""

_hosts: Final[WeakValueDictionary[str, PluginHost]] = WeakValueDictionary()


def live_record(host: PluginHost) -> HostRecord:
    """Return a record that stands for `host` itself, good in this process for as long as the host lives.

    Plugins given as objects need no import name this way, and nothing is searched or imported a second time. The record does
    not keep the host alive; its `extra` holds a token and nothing else.
    """
    token = str(uuid.uuid4())
    _hosts[token] = host
    return HostRecord(factory=FACTORY, extra=(token,))


def live(record: HostRecord) -> PluginHost:
    """Return the host that `live_record` was given. Raises PluginError when it does not live in this process."""
    host = _hosts.get(record.extra[0])
    if host is None:
        raise PluginError(
            "LM-PLUGIN-HOST-GONE",
            "the plugin host of this record does not live in this process",
            why="the record stands for an object of the process that made it, or that object is no longer in use",
            hints=("an executor whose ranks are other processes must say so: separate_processes = True",),
        )
    return host
