"""What one call of the command line was asked to do beyond its command: plugins, noise, and the form of the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadmaster.host import PluginSelection


@dataclass
class Session:
    """The options that hold for every command; click passes it around as `ctx.obj`.

    `plugin_choices` are the values of `-p` in order. `json` says that standard output carries exactly one JSON document.
    """

    plugin_choices: list[str] = field(default_factory=list)
    no_plugins: bool = False
    quiet: bool = False
    verbose: int = 0
    traceback: bool = False
    json: bool = False

    @property
    def selection(self) -> PluginSelection:
        """The plugins that may take part: the environment's choice changed by this call's options.

        Raises UsageError for choices that contradict each other.
        """
        from loadmaster.host import PluginSelection

        return PluginSelection.from_environment().choose(self.plugin_choices, no_plugins=self.no_plugins)


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether `--json` is among the options. It must be known before click has understood the rest."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options
