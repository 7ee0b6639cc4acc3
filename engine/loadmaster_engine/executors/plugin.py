"""The executors as a plugin: the entry point `executors`."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster_engine.executors.inline import InlineFactory
from loadmaster_engine.executors.multiprocess.executor import MultiprocessFactory
from loadmaster_hookspecs.executors import ExecutorFactory
from loadmaster_hookspecs.markers import hookimpl


@hookimpl
def loadmaster_executors() -> Sequence[ExecutorFactory]:
    """Return the factories of `inline` and `multiprocess`."""
    return [InlineFactory(), MultiprocessFactory()]
