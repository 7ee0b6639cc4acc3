"""What an adapter is, whatever it is called and wherever it lies: a digest of all bytes that decide what it does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from loadmaster_engine.plan.adapter_source import MODEL_CONFIG, AdapterSource
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.formats import FileRef

BLOCK: Final = 1 << 20
"""Bytes that are read and hashed at a time. Both let other threads run."""


def content_digest(host: PluginHost, uri: str, files: Sequence[FileRef]) -> str:
    """Return the digest, as hexadecimal digits, of the configuration at `uri` and of all `files` that hold tensors.

    Raises IntegrityError when one is gone or cannot be read.
    """
    source = AdapterSource(host.open_source(uri))
    digest = hashlib.blake2b(digest_size=32)
    block = memoryview(bytearray(BLOCK))
    for name in (MODEL_CONFIG, *sorted(file.name for file in files)):
        digest.update(f"{name}\0{source.size(name)}\0".encode())
        reader = source.open(name)
        try:
            offset = 0
            while count := reader.read_into(offset, block):
                digest.update(block[:count])
                offset += count
        except OSError as error:
            where = {"source": uri, "file": name}
            raise IntegrityError("LM-FILE-UNREADABLE", "a file cannot be read", where=where, why=str(error)) from error
        finally:
            reader.close()
    return digest.hexdigest()
