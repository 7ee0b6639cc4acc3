"""loadmaster plans, loads and runs large language models: every byte is accounted for before it is read.

    import loadmaster as lm

    print(lm.plan("path/to/model", tensor_parallel=2))
    with lm.Engine("path/to/model", tensor_parallel=2) as engine:
        print(engine.generate(["The capital of France is"], max_tokens=8)[0].text)

Importing this package is cheap and has no side effects; torch is imported where a model is described or built.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.api import inspect, load_into, load_model, plan
    from loadmaster.completion import Completion
    from loadmaster.engine import Engine
    from loadmaster.host import PluginSelection
    from loadmaster.inspection import Inspection
    from loadmaster.plans import Plan
    from loadmaster_engine.report import LoadReport, RankReport
    from loadmaster_hookspecs import (
        ErrorReport,
        ExitCode,
        IntegrityError,
        LoadmasterError,
        PlanError,
        PluginError,
        ResourceError,
        UsageError,
        WorkerError,
        hookimpl,
        hookspec,
    )

__version__ = "0.1.0"

_LAZY = {
    "ErrorReport": "loadmaster_hookspecs",
    "ExitCode": "loadmaster_hookspecs",
    "IntegrityError": "loadmaster_hookspecs",
    "LoadmasterError": "loadmaster_hookspecs",
    "PlanError": "loadmaster_hookspecs",
    "PluginError": "loadmaster_hookspecs",
    "ResourceError": "loadmaster_hookspecs",
    "UsageError": "loadmaster_hookspecs",
    "WorkerError": "loadmaster_hookspecs",
    "hookimpl": "loadmaster_hookspecs",
    "hookspec": "loadmaster_hookspecs",
    "Completion": "loadmaster.completion",
    "Engine": "loadmaster.engine",
    "Inspection": "loadmaster.inspection",
    "LoadReport": "loadmaster_engine.report",
    "Plan": "loadmaster.plans",
    "PluginSelection": "loadmaster.host",
    "RankReport": "loadmaster_engine.report",
    "inspect": "loadmaster.api",
    "load_into": "loadmaster.api",
    "load_model": "loadmaster.api",
    "plan": "loadmaster.api",
}

__all__ = [
    "Completion",
    "Engine",
    "ErrorReport",
    "ExitCode",
    "Inspection",
    "IntegrityError",
    "LoadReport",
    "LoadmasterError",
    "Plan",
    "PlanError",
    "PluginError",
    "PluginSelection",
    "RankReport",
    "ResourceError",
    "UsageError",
    "WorkerError",
    "__version__",
    "hookimpl",
    "hookspec",
    "inspect",
    "load_into",
    "load_model",
    "plan",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
