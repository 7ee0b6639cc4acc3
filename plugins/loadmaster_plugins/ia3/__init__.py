"""The `ia3` adapter kind: vectors that scale what layers take or give, as peft writes them."""

from __future__ import annotations

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.adapters import AdapterKind
from loadmaster_plugins.ia3.kind import IA3


@hookimpl
def loadmaster_adapters() -> list[AdapterKind]:
    """Return the one kind of this plugin."""
    return [IA3()]
