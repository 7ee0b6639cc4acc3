"""The plugin host: finds plugins, collects what they provide, and answers the kernel's questions about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from loadmaster.host.attribution import attributed
from loadmaster.host.choice import asked, best
from loadmaster.host.discovery import discover
from loadmaster.host.environment import PluginSelection
from loadmaster.host.extras import load_extras
from loadmaster.host.families import (
    ADAPTERS,
    COMMANDS,
    EXECUTORS,
    FORMATS,
    KERNELS,
    MODELS,
    QUANTIZERS,
    SOURCES,
    STRATEGIES,
    TRANSFORMS,
    transform_key,
)
from loadmaster.host.info import PluginInfo
from loadmaster.host.inspection import new_manager
from loadmaster.host.manifest import make_record
from loadmaster.host.observers import Observers
from loadmaster.host.registry import Registry
from loadmaster.host.standing import notices, refuse_absent
from loadmaster_hookspecs import IntegrityError, PlanError, UsageError
from loadmaster_hookspecs.adapters import AdapterKind
from loadmaster_hookspecs.events import Event
from loadmaster_hookspecs.executors import ExecutorFactory, HostRecord
from loadmaster_hookspecs.formats import FormatLoader
from loadmaster_hookspecs.models import ModelFamily
from loadmaster_hookspecs.quantization import MatrixKernel, Quantizer
from loadmaster_hookspecs.sharding import ShardStrategy
from loadmaster_hookspecs.sources import Source
from loadmaster_hookspecs.transforms import Transform

if TYPE_CHECKING:
    import click

_SHOWN_FILES = 8


class PluginHost:
    """The plugins of one engine, and the objects they provide. Hosts share nothing; two may differ in one process.

    Args:
        selection: which installed plugins take part (default: what the environment says).
        extra: further plugins: modules, instances, or import names (`module` or `module:name`).

    Building a host imports the admitted plugins. A broken installed plugin is recorded in `plugins` and harms no other. Raises
    PluginError when two admitted distributions use one plugin name, when a required plugin is not active, and when one of
    `extra` cannot be used.

    A look-up of an unknown name raises PluginError that lists the known names, a tie between candidates raises PluginError that
    names them with versions and evidence, and an exception from a plugin's own code leaves as PluginError that names plugin,
    version and hook. The ranks of one process share a host: look-ups may come from several threads, events from one at a time.
    """

    def __init__(self, selection: PluginSelection | None = None, extra: Sequence[object] = ()) -> None:
        self._selection = PluginSelection.from_environment() if selection is None else selection
        manager = new_manager()
        installed = discover(manager, self._selection)
        refuse_absent(self._selection, installed)
        self._plugins = (*installed, *load_extras(manager, extra))
        self._extra = tuple(extra)
        self._registry = Registry(manager, self._plugins)
        self._observers = Observers(manager, {info.name: info for info in self._plugins if info.status == "active"})

    @property
    def plugins(self) -> tuple[PluginInfo, ...]:
        """Every plugin that was found or passed, active or not: first-party, third-party, passed by the caller."""
        return self._plugins

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines worth telling the user once: plugins that failed, and chosen names that no plugin has."""
        return notices(self._selection, self._plugins)

    def open_source(self, uri: str) -> Source:
        """Open an address with the provider that claims it best. Raises UsageError when none does."""
        candidates = self._registry.family(SOURCES)
        chosen = best(SOURCES, candidates, "claim", lambda provider: provider.claim(uri), repr(uri))
        if chosen is None:
            raise UsageError("LM-SOURCE-UNKNOWN", f"no plugin can open {uri!r}", hints=self._hints(asked(candidates)))
        with attributed(chosen.plugin, SOURCES.hook, f"open of source {chosen.key}"):
            return chosen.value.open(uri)

    def detect_format(self, source: Source) -> FormatLoader:
        """Return the loader whose match with the source is best. Raises IntegrityError when no loader recognises it."""
        candidates = self._registry.family(FORMATS)
        chosen = best(FORMATS, candidates, "detect", lambda loader: loader.detect(source), source.uri)
        if chosen is None:
            raise IntegrityError(
                "LM-FORMAT-UNKNOWN",
                "no plugin recognises the files as a checkpoint",
                where={"source": source.uri},
                why=_listing([entry.name for entry in source.files()]),
                hints=self._hints(asked(candidates)),
            )
        return chosen.value

    def match_family(self, config: Mapping[str, Any]) -> ModelFamily:
        """Return the family that fits a model's configuration best. Raises PlanError when none does."""
        candidates = self._registry.family(MODELS)
        chosen = best(MODELS, candidates, "match", lambda family: family.match(config), _model(config))
        if chosen is None:
            raise PlanError("LM-FAMILY-UNKNOWN", f"no plugin can build {_model(config)}", hints=self._hints(asked(candidates)))
        return chosen.value

    def format(self, name: str) -> FormatLoader:
        """Return the format loader of that name."""
        return self._registry.get(FORMATS, name)

    def family(self, name: str) -> ModelFamily:
        """Return the model family of that name."""
        return self._registry.get(MODELS, name)

    def strategy(self, name: str) -> ShardStrategy:
        """Return the shard strategy of that name."""
        return self._registry.get(STRATEGIES, name)

    def transform(self, name: str, version: int) -> Transform:
        """Return the transform of that name and version."""
        return self._registry.get(TRANSFORMS, transform_key(name, version))

    def quantizer(self, name: str) -> Quantizer:
        """Return the quantizer of that name."""
        return self._registry.get(QUANTIZERS, name)

    def kernel(self, name: str) -> MatrixKernel:
        """Return the kernel for quantised matrices of that name."""
        return self._registry.get(KERNELS, name)

    def quantizers(self) -> Mapping[str, Quantizer]:
        """Return all quantizers by name."""
        return self._registry.values(QUANTIZERS)

    def kernels(self) -> Mapping[str, MatrixKernel]:
        """Return all kernels for quantised matrices by name."""
        return self._registry.values(KERNELS)

    def match_adapter(self, config: Mapping[str, Any]) -> AdapterKind:
        """Return the kind that recognises an adapter's configuration best. Raises PlanError when none does."""
        candidates = self._registry.family(ADAPTERS)
        said = f"an adapter of type {config.get('peft_type', 'not given')}"
        chosen = best(ADAPTERS, candidates, "detect", lambda kind: kind.detect(config), said)
        if chosen is None:
            raise PlanError("LM-ADAPTER-UNKNOWN", f"no plugin understands {said}", hints=self._hints(asked(candidates)))
        return chosen.value

    def adapter_kind(self, name: str) -> AdapterKind:
        """Return the adapter kind of that name."""
        return self._registry.get(ADAPTERS, name)

    def executor(self, name: str) -> ExecutorFactory:
        """Return the executor factory of that name."""
        return self._registry.get(EXECUTORS, name)

    def formats(self) -> Mapping[str, FormatLoader]:
        """Return all format loaders by name."""
        return self._registry.values(FORMATS)

    def families(self) -> Mapping[str, ModelFamily]:
        """Return all model families by name."""
        return self._registry.values(MODELS)

    def executors(self) -> Mapping[str, ExecutorFactory]:
        """Return all executor factories by name."""
        return self._registry.values(EXECUTORS)

    def commands(self) -> Mapping[str, click.Command]:
        """Return all commands that plugins add to the command line, by name."""
        return self._registry.values(COMMANDS)

    def emit(self, event: Event) -> None:
        """Tell every observer plugin about an event; a failing observer is reported once and left out."""
        self._observers.emit(event)

    def record(self) -> HostRecord:
        """Return the data that rebuilds this host in a worker, with the manifest to verify there.

        Raises PluginError for a plugin given as an object that cannot be imported by name.
        """
        return make_record(self._selection, self._plugins, self._extra)

    def attributed(self, value: object, call: str, *expected: type[Exception]) -> AbstractContextManager[None]:
        """Return a context for calling `value`, an object that this host handed out.

        An exception inside that is no LoadmasterError becomes a PluginError naming the plugin that provided the object; `call`
        says what was called, for example `open of format toy`. What the contract lets it raise (`expected`) passes unchanged.
        """
        return self._registry.attributed(value, call, *expected)

    def _hints(self, first: str) -> list[str]:
        return [hint for hint in (first, self._registry.left_out()) if hint]


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
    return f"it holds {len(names)} files: {', '.join(names[:_SHOWN_FILES])}{more}" if names else "it holds no file"


def _model(config: Mapping[str, Any]) -> str:
    listed = config.get("architectures")
    architecture = listed[0] if isinstance(listed, list) and listed else "a model without architecture"
    return f"{architecture} (model_type {config.get('model_type', 'not given')})"
