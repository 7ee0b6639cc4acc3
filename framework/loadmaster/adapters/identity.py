"""What an adapter is, whatever it is called and wherever it lies: a digest of all bytes that decide what it does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from loadmaster_engine.plan.adapter_source import MODEL_CONFIG, AdapterSource
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.formats import FileRef

BLOCK: Final = 1 << 20
"""Bytes that are read and hashed at a time. Both let other threads run."""


def content_digest(host: PluginHost, uri: str, files: Sequence[FileRef]) -> str:
    """Return the digest, as hexadecimal digits, of the configuration at `uri` and of all `files` that hold tensors.

    Raises IntegrityError when one is gone.
    """
    source = AdapterSource(host.open_source(uri))
    digest = hashlib.blake2b(digest_size=32)
    for name in (MODEL_CONFIG, *sorted(file.name for file in files)):
        size = source.size(name)
        digest.update(f"{name}\0{size}\0".encode())
        for offset in range(0, size, BLOCK):
            digest.update(source.read(name, offset, min(BLOCK, size - offset)))
    return digest.hexdigest()
