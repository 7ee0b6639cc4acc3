"""What a user should hear about the plugins of a host: who is missing, who failed, which names mean nothing."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.host.environment import PluginSelection, canonical
from loadmaster.host.info import PluginInfo
from loadmaster.host.inspection import did_you_mean
from loadmaster_hookspecs import PluginError


def refuse_absent(selection: PluginSelection, plugins: Sequence[PluginInfo]) -> None:
    """Raise PluginError when a plugin that `selection` requires is not installed or not active."""
    for name in selection.required:
        meant = [info for info in plugins if canonical(name) in _names(info)]
        if not meant:
            hint = did_you_mean(name, [info.name for info in plugins])
            raise PluginError(
                "LM-PLUGIN-REQUIRED",
                f"plugin {name!r} was asked for and is not installed",
                hints=[*([hint] if hint else []), "loadmaster plugins list shows what is installed"],
            )
        for info in meant:
            if info.status != "active":
                raise PluginError(
                    "LM-PLUGIN-REQUIRED",
                    f"plugin {info.label} was asked for and is {info.status}",
                    where=info.location,
                    why=info.reason,
                    traceback=info.traceback,
                )


def notices(selection: PluginSelection, plugins: Sequence[PluginInfo]) -> tuple[str, ...]:
    """Return one line for every plugin that could not be used or does nothing, and for every chosen name that no plugin has."""
    troubled = [info for info in plugins if info.reason and info.status != "disabled"]
    return (
        *(f"plugin {info.label}, {info.status}: {info.reason}" for info in troubled),
        *unknown_names(selection, plugins),
    )


def unknown_names(selection: PluginSelection, plugins: Sequence[PluginInfo]) -> tuple[str, ...]:
    """Return one line for every allowed or blocked name that no installed plugin has."""
    known = sorted({name for info in plugins for name in (info.name, info.distribution) if name})
    return tuple(
        " ".join((f"no installed plugin or distribution is called {name!r};", did_you_mean(name, known))).rstrip("; ")
        for name in selection.unmatched(known)
    )


def _names(info: PluginInfo) -> set[str]:
    return {canonical(info.name), canonical(info.distribution)}
