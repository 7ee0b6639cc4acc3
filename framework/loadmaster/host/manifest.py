"""The host as data: what a worker needs to rebuild it, and the comparison of what the worker then finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from loadmaster.host.environment import PluginSelection
from loadmaster.host.extras import import_name
from loadmaster.host.info import PluginInfo
from loadmaster_hookspecs import API_VERSION, PluginError
from loadmaster_hookspecs.executors import HostRecord, ManifestEntry

FACTORY: Final = "loadmaster.host:rebuild"
"""Where a worker finds the function that rebuilds a host from its record."""


def make_record(selection: PluginSelection, plugins: Sequence[PluginInfo], extras: Sequence[object]) -> HostRecord:
    """Return the record of a host. Its manifest lists the active installed plugins; `extra` those that the caller passed.

    Raises PluginError when a plugin that the caller passed cannot be imported by another process.
    """
    return HostRecord(
        factory=FACTORY,
        api_version=API_VERSION,
        manifest=tuple(info.entry for info in plugins if info.status == "active" and info.distribution),
        extra=tuple(extra if isinstance(extra, str) else _importable(extra) for extra in extras),
        blocked=selection.blocked,
        allowed=selection.allowed,
    )


def differences(record: HostRecord, plugins: Sequence[PluginInfo]) -> tuple[str, ...]:
    """Return every difference between the manifest and the installed `plugins` of this process, naming both sides."""
    planned = {entry.name: entry for entry in record.manifest}
    installed = [info for info in plugins if info.distribution]
    active = {info.name: info.entry for info in installed if info.status == "active"}
    return (
        *_contract(record.api_version),
        *(line for name, entry in planned.items() for line in _compared(name, entry, active.get(name), installed)),
        *(f"{name}: not active in the parent, {_origin(active[name])} here" for name in active if name not in planned),
    )


def mismatch(found: Sequence[str]) -> PluginError:
    """Return the error of a worker whose plugins differ from its parent's."""
    return PluginError(
        "LM-PLUGIN-MANIFEST",
        "this process has other plugins than the process that started it",
        why="; ".join(found),
        hints=(
            "start both from one environment: same interpreter, sys.path and installed versions",
            "if packages were installed or upgraded meanwhile, start again",
        ),
    )


def _contract(parent: int) -> Iterator[str]:
    if parent != API_VERSION:
        yield f"contract version {parent} in the parent, {API_VERSION} here"


def _compared(name: str, planned: ManifestEntry, here: ManifestEntry | None, installed: Sequence[PluginInfo]) -> Iterator[str]:
    if here is None:
        reasons = [f" ({info.status}: {info.reason})" for info in installed if info.name == name]
        yield f"{name}: {_origin(planned)} in the parent, not active here{''.join(reasons)}"
        return
    sides: Mapping[str, tuple[str, str]] = {
        "distribution": (planned.distribution, here.distribution),
        "version": (planned.version, here.version),
        "value": (planned.value, here.value),
    }
    for what, (there, now) in sides.items():
        if there != now:
            yield f"{name}: {what} {there} in the parent, {now} here"


def _origin(entry: ManifestEntry) -> str:
    return f"{entry.distribution} {entry.version}"


def _importable(plugin: object) -> str:
    found = import_name(plugin)
    if found.problem:
        raise PluginError(
            "LM-PLUGIN-NOT-IMPORTABLE",
            f"a plugin of type {type(plugin).__qualname__} cannot be imported by worker processes",
            why=found.problem,
            hints=(
                "make it a global of a module that workers can import, and pass it as 'module:name'",
                "use the inline executor, which needs no other process",
            ),
        )
    return found.name
