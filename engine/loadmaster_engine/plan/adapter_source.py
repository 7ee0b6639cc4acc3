"""An adapter's folder, seen as a checkpoint of its own: its tensor files, with its configuration in the place of a model's."""

from __future__ import annotations

import re

import msgspec

from loadmaster_engine.attribution import AttributedFormat
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError, from_report
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.sources import FileEntry, RangeReader, Source

CONFIG = "adapter_config.json"
MODEL_CONFIG = "config.json"
PREFIX = "adapter_"
"""How the names of an adapter's files begin; the folder may hold a tokenizer, or a whole model, besides."""
_SHOWN = re.compile(rf"\b(?<!_){re.escape(MODEL_CONFIG)}\b")


class AdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter to plan: the name that calls choose it by, its kind, and the index of its files."""

    name: str
    kind: str
    index: CheckpointIndex


class AdapterSource:
    """The files of one adapter in `source`. Formats find its configuration under the name of a model's."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def uri(self) -> str:
        """The address of the folder."""
        return self._source.uri

    @property
    def bytes_read(self) -> int:
        """Bytes returned by `read` so far."""
        return self._source.bytes_read

    def files(self) -> tuple[FileEntry, ...]:
        """Return the adapter's files, sorted by name."""
        own = [entry for entry in self._source.files() if entry.name.startswith(PREFIX)]
        shown = [msgspec.structs.replace(each, name=MODEL_CONFIG) if each.name == CONFIG else each for each in own]
        return tuple(sorted(shown, key=lambda entry: entry.name))

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return self._source.size(_stored(name))

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return up to `size` bytes of a file."""
        return self._source.read(_stored(name), offset, size)

    def open(self, name: str) -> RangeReader:
        """Open a file for reading tensor bytes."""
        return self._source.open(_stored(name))


def _stored(name: str) -> str:
    return CONFIG if name == MODEL_CONFIG else name


def _as_stored(error: LoadmasterError) -> LoadmasterError:
    """Return a format's error with the configuration's own name, which the folder's owner looks for."""
    report = error.report

    def renamed(text: str) -> str:
        return _SHOWN.sub(CONFIG, text)

    where = {key: renamed(value) if isinstance(value, str) else value for key, value in report.where.items()}
    summary, why = renamed(report.summary), renamed(report.why)
    return from_report(msgspec.structs.replace(report, summary=summary, why=why, where=where))


def open_adapter(host: PluginHost, name: str, uri: str) -> AdapterRequest:
    """Return the adapter at `uri`, from headers and configuration alone. Runs in the host and imports no torch.

    Raises IntegrityError LM-ADAPTER-CONFIG when there is no configuration, PlanError when no plugin understands it, and
    whatever the format raises for damaged files.
    """
    plain = host.open_source(uri)
    if all(entry.name != CONFIG for entry in plain.files()):
        raise IntegrityError(
            "LM-ADAPTER-CONFIG",
            f"the folder has no {CONFIG}",
            where={"adapter": name, "source": plain.uri},
            hints=["give the folder that holds adapter_model.safetensors or adapter_model.bin, and its configuration"],
        )
    source = AdapterSource(plain)
    try:
        loader = AttributedFormat(host, host.detect_format(source))
        opened = loader.open(source)
    except LoadmasterError as error:
        raise _as_stored(error) from error.__cause__
    # An adapter's folder has few files: each that could be it as well is worth a remark.
    closed = tuple(
        Finding(level="info", code="LM-ADAPTER-FILE", where=each.name, message=f"{each.name} is left out: {each.reason}")
        for each in opened.ignored
    )
    index = msgspec.structs.replace(opened, findings=(*opened.findings, *closed), bytes_read=source.bytes_read)
    return AdapterRequest(name=name, kind=host.match_adapter(index.config).name, index=index)
