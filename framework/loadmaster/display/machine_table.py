"""Machine and plugins as text, to paste into a bug report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loadmaster.display.columns import facts
from loadmaster.display.units import size
from loadmaster.machine import Machine

if TYPE_CHECKING:
    from loadmaster.host import PluginInfo


def render_machine(machine: Machine, plugins: Sequence[PluginInfo], plugin_problem: str = "") -> str:
    """Return versions, limits, plugins (or the problem with them) and variables as aligned lines."""
    pages = ", ".join(f"{kind} {state}" for kind, state in machine.huge_pages.items())
    lines = [
        ("python", machine.python),
        ("system", machine.system),
        ("packages", "\n".join(f"{name} {version}" for name, version in machine.packages.items())),
        ("cores", str(machine.cores)),
        ("memory", f"{_size(machine.memory_total)}, {_size(machine.memory_available)} available, limit {_limit(machine)}"),
        ("/dev/shm", f"{_size(machine.shared_memory_free)} free"),
        ("huge pages", pages),
        ("accelerator", machine.accelerator or "no driver"),
        ("plugins", plugin_problem or "\n".join(map(_plugin, plugins)) or "none"),
        ("variables", "\n".join(f"{name}={value}" for name, value in machine.variables.items()) or "none"),
    ]
    return "\n".join(facts(lines))


def _plugin(plugin: PluginInfo) -> str:
    return f"{plugin.label} {plugin.status}" + (f": {plugin.reason}" if plugin.reason else "")


def _size(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else size(num_bytes)


def _limit(machine: Machine) -> str:
    return "none" if machine.memory_limit is None else size(machine.memory_limit)
