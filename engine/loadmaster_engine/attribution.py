"""Objects of plugins as the kernel calls them: whatever goes wrong inside one names its plugin, version and method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.findings import Finding, Match
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef, FormatLoader
from loadmaster_hookspecs.models import ModelOutline, ModuleSpec
from loadmaster_hookspecs.sharding import Placement, ShardStrategy, Topology, Unit
from loadmaster_hookspecs.sources import RangeReader, Source
from loadmaster_hookspecs.transforms import Transform


class AttributedFormat:
    """A format loader of `host`, and the readers it opens."""

    def __init__(self, host: PluginHost, loader: FormatLoader) -> None:
        self.name = loader.name
        self._host = host
        self._loader = loader

    def detect(self, source: Source) -> Match | None:
        """Return the loader's match."""
        with self.attributed("detect"):
            return self._loader.detect(source)

    def open(self, source: Source) -> CheckpointIndex:
        """Return the loader's index of the source."""
        with self.attributed("open"):
            return self._loader.open(source)

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        """Open a file with the loader."""
        with self.attributed(f"reader for {file.name}"):
            return AttributedReader(self, self._loader.reader(source, file), file.name)

    def attributed(self, call: str, *expected: type[Exception]) -> AbstractContextManager[None]:
        """Return the context for a call of the loader, or of one of its readers."""
        return self._host.attributed(self._loader, f"{call} of format {self.name}", *expected)


class AttributedReader:
    """A reader of `loader`. What the operating system reports (OSError) passes unchanged."""

    def __init__(self, loader: AttributedFormat, reader: RangeReader, name: str) -> None:
        self._loader = loader
        self._reader = reader
        self._name = name

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill `view` from byte `offset` of the file and return the bytes read."""
        with self._loader.attributed(f"read_into for {self._name}", OSError):
            return self._reader.read_into(offset, view)

    def mapping(self) -> memoryview | None:
        """Return the file as a view, or None where it cannot be mapped."""
        with self._loader.attributed(f"mapping for {self._name}", OSError):
            return self._reader.mapping()

    def close(self) -> None:
        """Close the reader."""
        with self._loader.attributed(f"close for {self._name}"):
            self._reader.close()


class AttributedTransform:
    """A transform of `host`."""

    def __init__(self, host: PluginHost, transform: Transform) -> None:
        self.name = transform.name
        self.version = transform.version
        self._host = host
        self._transform = transform

    def granule(self, args: Mapping[str, str | int]) -> tuple[int, int]:
        """Return the transform's granule."""
        with self._attributed("granule"):
            return self._transform.granule(args)

    def apply(self, source: memoryview, dest: memoryview, args: Mapping[str, str | int]) -> Mapping[str, int]:
        """Transform `source` into `dest` and return the counters."""
        with self._attributed("apply"):
            return self._transform.apply(source, dest, args)

    def _attributed(self, call: str) -> AbstractContextManager[None]:
        return self._host.attributed(self._transform, f"{call} of transform {self.name} v{self.version}")


class AttributedStrategy:
    """A shard strategy of `host`."""

    def __init__(self, host: PluginHost, strategy: ShardStrategy) -> None:
        self.name = strategy.name
        self._host = host
        self._strategy = strategy

    def check(self, outline: ModelOutline, topology: Topology) -> Sequence[Finding]:
        """Return the strategy's findings."""
        with self._attributed("check"):
            return self._strategy.check(outline, topology)

    def place(self, module: ModuleSpec, units: Mapping[str, Unit], topology: Topology, rank: int) -> Placement:
        """Return the strategy's placement of `module` on `rank`."""
        with self._attributed(f"place for {module.path}"):
            return self._strategy.place(module, units, topology, rank)

    def _attributed(self, call: str) -> AbstractContextManager[None]:
        return self._host.attributed(self._strategy, f"{call} of shard strategy {self.name}")
