"""The contract between the kernel of loadmaster and its plugins: hook specifications, records and protocols.

Nothing here imports torch, transformers or the rest of loadmaster. Users and plugin authors import these names from
`loadmaster`.
"""

from __future__ import annotations

from loadmaster_hookspecs.errors import (
    ErrorReport,
    ExitCode,
    IntegrityError,
    LoadmasterError,
    PlanError,
    PluginError,
    ResourceError,
    UsageError,
    WorkerError,
)
from loadmaster_hookspecs.markers import API_VERSION, PROJECT, hookimpl, hookspec

__all__ = [
    "API_VERSION",
    "PROJECT",
    "ErrorReport",
    "ExitCode",
    "IntegrityError",
    "LoadmasterError",
    "PlanError",
    "PluginError",
    "ResourceError",
    "UsageError",
    "WorkerError",
    "hookimpl",
    "hookspec",
]
