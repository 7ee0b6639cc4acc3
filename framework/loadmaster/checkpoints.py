"""Opening a checkpoint: the plugin host, the index of its files, and the small files beside them."""

from __future__ import annotations

import os

import msgspec

from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.sources import Source


def open_index(host: PluginHost, path: str | os.PathLike[str]) -> CheckpointIndex:
    """Return the index of the checkpoint at `path`, from headers alone. Raises IntegrityError for damaged files."""
    source = host.open_source(os.fspath(path))
    index = host.detect_format(source).open(source)
    return msgspec.structs.replace(index, bytes_read=source.bytes_read)


class SmallFiles:
    """Reads whole files that lie beside the weights, such as the tokenizer's."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sizes = {entry.name: entry.size for entry in source.files()}

    def __call__(self, name: str) -> bytes | None:
        """Return the content of a file, or None when the source has no such file."""
        if name not in self._sizes:
            return None
        return self._source.read(name, 0, self._sizes[name])
