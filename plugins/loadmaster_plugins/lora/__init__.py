"""The `lora` adapter kind: low-rank adapters as peft writes them, with DoRA, biases and replaced modules."""

from __future__ import annotations

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.adapters import AdapterKind
from loadmaster_plugins.lora.kind import Lora


@hookimpl
def loadmaster_adapters() -> list[AdapterKind]:
    """Return the one kind of this plugin."""
    return [Lora()]
