"""What the kernel needs from the plugin host, as a protocol, so that it does not depend on the framework."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from loadmaster_hookspecs.adapters import AdapterKind
from loadmaster_hookspecs.events import Event
from loadmaster_hookspecs.executors import ExecutorFactory, HostRecord
from loadmaster_hookspecs.formats import FormatLoader
from loadmaster_hookspecs.models import ModelFamily
from loadmaster_hookspecs.quantization import MatrixKernel, Quantizer
from loadmaster_hookspecs.sharding import ShardStrategy
from loadmaster_hookspecs.sources import Source
from loadmaster_hookspecs.transforms import Transform


class PluginHost(Protocol):
    """The objects that plugins provide, looked up by name or chosen by evidence.

    Every look-up of an unknown name raises PluginError that lists the known names; every tie between candidates raises
    PluginError that names both providers with their versions.
    """

    def open_source(self, uri: str) -> Source:
        """Open an address with the provider that claims it best."""
        ...

    def detect_format(self, source: Source) -> FormatLoader:
        """Return the loader whose match with the source is best. Raises IntegrityError when no loader recognises it."""
        ...

    def match_family(self, config: Mapping[str, Any]) -> ModelFamily:
        """Return the family that fits a model's configuration best. Raises PlanError when none does."""
        ...

    def format(self, name: str) -> FormatLoader:
        """Return the format loader of that name."""
        ...

    def family(self, name: str) -> ModelFamily:
        """Return the model family of that name."""
        ...

    def strategy(self, name: str) -> ShardStrategy:
        """Return the shard strategy of that name."""
        ...

    def transform(self, name: str, version: int) -> Transform:
        """Return the transform of that name and version."""
        ...

    def quantizers(self) -> Mapping[str, Quantizer]:
        """Return all quantizers by name."""
        ...

    def kernels(self) -> Mapping[str, MatrixKernel]:
        """Return all kernels for quantised matrices by name."""
        ...

    def quantizer(self, name: str) -> Quantizer:
        """Return the quantizer of that name."""
        ...

    def kernel(self, name: str) -> MatrixKernel:
        """Return the kernel of that name."""
        ...

    def match_adapter(self, config: Mapping[str, Any]) -> AdapterKind:
        """Return the kind that recognises an adapter's configuration best. Raises PlanError when none does."""
        ...

    def adapter_kind(self, name: str) -> AdapterKind:
        """Return the adapter kind of that name."""
        ...

    def executor(self, name: str) -> ExecutorFactory:
        """Return the executor factory of that name."""
        ...

    def emit(self, event: Event) -> None:
        """Tell every observer plugin about an event; a failing observer is reported once and left out."""
        ...

    def attributed(self, value: object, call: str, *expected: type[Exception]) -> AbstractContextManager[None]:
        """Return a context for calling `value`, an object that this host handed out.

        An exception inside that is no LoadmasterError leaves as a PluginError that names the plugin with its version and `call`
        (`describe of model family toy`). What the contract lets the call raise (`expected`) passes unchanged.
        """
        ...

    def record(self) -> HostRecord:
        """Return the data that rebuilds this host in a worker, with the manifest to verify there.

        Raises PluginError for a plugin given as an object that cannot be imported by name.
        """
        ...


def rebuild_host(record: HostRecord) -> PluginHost:
    """Rebuild the host in this process from its record and verify the manifest.

    Raises PluginError when this process finds other plugins or versions than the host that made the record.
    """
    factory = pkgutil.resolve_name(record.factory)
    return cast(PluginHost, factory(record))
