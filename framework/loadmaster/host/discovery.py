"""Finds plugins among the installed distributions and loads them one by one, so that a broken one harms no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pluggy

from loadmaster.host.attribution import one_line, traceback_text
from loadmaster.host.environment import PluginSelection, canonical, is_first_party
from loadmaster.host.info import PluginInfo
from loadmaster.host.inspection import UnfitPlugin, register, source_file
from loadmaster_hookspecs import PROJECT, PluginError
from loadmaster_hookspecs.executors import ManifestEntry

if TYPE_CHECKING:
    from importlib.metadata import Distribution


class Found(msgspec.Struct, frozen=True):
    """What the metadata of a distribution says: an entry point, or the problem that keeps it from being read."""

    entry: ManifestEntry
    problem: str = ""


def discover(manager: pluggy.PluginManager, selection: PluginSelection) -> tuple[PluginInfo, ...]:
    """Load every installed plugin that `selection` admits into `manager` and return what became of each.

    First-party plugins come first, the others by distribution and name. Only admitted plugins are imported.
    Raises PluginError when two admitted distributions use one plugin name.
    """
    found = sorted(installed(), key=_order)
    verdicts = [selection.exclusion(each.entry.name, each.entry.distribution) for each in found]
    _refuse_shared_names([each.entry for each, reason in zip(found, verdicts, strict=True) if not reason])
    return tuple(_admit(manager, each, reason) for each, reason in zip(found, verdicts, strict=True))


def installed() -> tuple[Found, ...]:
    """Return the entry points of group `loadmaster` on `sys.path`, without importing any of them.

    A distribution that two paths lead to counts once: the first path wins, as it does for imports.
    """
    from importlib.metadata import distributions  # costs as much as this whole package; needed only here

    first: dict[str, list[Found]] = {}
    for distribution in distributions():
        if _has_plugins(distribution):
            name = _field(distribution, "Name")
            first.setdefault(canonical(name), list(_entries(distribution, name, _field(distribution, "Version"))))
    return tuple(dict.fromkeys(each for entries in first.values() for each in entries))


def _has_plugins(distribution: Distribution) -> bool:
    try:
        return f"[{PROJECT}]" in (distribution.read_text("entry_points.txt") or "")
    except UnicodeDecodeError:  # not a file that a Python installer wrote, so not one of ours
        return False


def _field(distribution: Distribution, name: str) -> str:
    values = distribution.metadata.get_all(name)
    return str(values[0]) if values else "unknown"


def _entries(distribution: Distribution, name: str, version: str) -> Iterator[Found]:
    try:
        points = list(distribution.entry_points.select(group=PROJECT))
    except Exception as error:  # noqa: BLE001  boundary: a file that anyone may have written
        entry = ManifestEntry(name=name, distribution=name, version=version, value="")
        yield Found(entry, f"its entry_points.txt cannot be read: {one_line(error)}")
        return
    for point in points:
        yield Found(ManifestEntry(name=point.name, distribution=name, version=version, value=point.value))


def _order(found: Found) -> tuple[bool, str, str]:
    entry = found.entry
    return not is_first_party(entry.distribution), canonical(entry.distribution), entry.name


def _refuse_shared_names(entries: Iterable[ManifestEntry]) -> None:
    by_name: dict[str, list[ManifestEntry]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    for name, rivals in by_name.items():
        if len(rivals) > 1:
            providers = ", ".join(f"{rival.distribution} {rival.version}" for rival in rivals)
            removable = [rival.distribution for rival in rivals if not is_first_party(rival.distribution)]
            raise PluginError(
                "LM-PLUGIN-CONFLICT",
                f"{len(rivals)} installed plugins are called {name!r}",
                where={"plugin": name},
                why=f"{name!r} provided by {providers}",
                hints=[f"choose one: -p no:{distribution}" for distribution in removable],
            )


def _admit(manager: pluggy.PluginManager, found: Found, exclusion: str) -> PluginInfo:
    entry = found.entry
    info = PluginInfo(
        name=entry.name,
        distribution=entry.distribution,
        version=entry.version,
        value=entry.value,
        status="disabled" if exclusion else "failed",
        reason=exclusion or found.problem,
    )
    return info if info.reason else _load(manager, info)


def _load(manager: pluggy.PluginManager, info: PluginInfo) -> PluginInfo:
    from importlib.metadata import EntryPoint

    try:
        plugin = EntryPoint(name=info.name, value=info.value, group=PROJECT).load()
        hooks = register(manager, plugin, info.name)
    except UnfitPlugin as error:
        return msgspec.structs.replace(info, status=error.status, reason=error.reason, module=source_file(plugin))
    except (Exception, SystemExit) as error:  # noqa: BLE001  boundary: importing code of a plugin
        return msgspec.structs.replace(info, reason=one_line(error), traceback=traceback_text(error))
    reason = "" if hooks else f"it implements no hook; is {info.value!r} the right module?"
    return msgspec.structs.replace(info, status="active", reason=reason, hooks=hooks, module=source_file(plugin))
