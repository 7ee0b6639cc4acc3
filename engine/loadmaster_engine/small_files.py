"""The small files that lie beside the weights: tokenizers, settings of quantisation."""

from __future__ import annotations

from loadmaster_hookspecs.sources import Source


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
