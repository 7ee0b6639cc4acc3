"""What is known about one plugin: where it comes from, whether it takes part, and why not."""

from __future__ import annotations

from typing import Literal

import msgspec

from loadmaster_hookspecs.executors import ManifestEntry

Status = Literal["active", "disabled", "failed", "incompatible"]
"""`active` takes part; `disabled` was left out by choice and not imported; `failed` could not be used; `incompatible` was
written for another version of the contract."""


class PluginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin as the host found it.

    `value` is what is imported (`module` or `module:name`; empty for an object that no import leads to), `module` the file it
    lies in. `reason` says why the plugin is not active, or why it does nothing although it is; `traceback` is the text of the
    error that its import raised. `hooks` are the hooks it implements. `distribution` and `version` are empty for a plugin that
    the caller passed.
    """

    name: str
    distribution: str = ""
    version: str = ""
    value: str = ""
    module: str = ""
    status: Status
    reason: str = ""
    hooks: tuple[str, ...] = ()
    traceback: str = ""

    @property
    def label(self) -> str:
        """The plugin in a sentence: `acme (acme-formats 1.0)`."""
        origin = f"{self.distribution} {self.version}" if self.distribution else "passed by the caller"
        return f"{self.name} ({origin})"

    @property
    def remedy(self) -> str:
        """What to do to run without this plugin."""
        if self.distribution:
            return f"leave {self.name} out: -p no:{self.name}"
        return f"do not pass {self.name}"

    @property
    def entry(self) -> ManifestEntry:
        """The plugin as a line of the manifest."""
        return ManifestEntry(name=self.name, distribution=self.distribution, version=self.version, value=self.value)

    @property
    def location(self) -> dict[str, str | int]:
        """Plugin, distribution and version, for the `where` of an error."""
        place = {"plugin": self.name, "distribution": self.distribution, "version": self.version}
        return {name: value for name, value in place.items() if value}
