"""The small JSON documents of a checkpoint: index, configuration, generation defaults."""

from __future__ import annotations

from typing import Any, Final

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.sources import Source
from loadmaster_plugins.hf_safetensors.catalog import Catalog
from loadmaster_plugins.hf_safetensors.lfs import LONGEST_POINTER, pointer_error
from loadmaster_plugins.hf_safetensors.strict_json import JsonFault, check_depth, parse_object

CONFIG: Final = "config.json"
GENERATION: Final = "generation_config.json"

LONGEST_CONFIG: Final = 16_000_000
"""Bytes that a configuration may have; real ones have a few thousand."""


def read_config(source: Source, files: Catalog) -> dict[str, Any]:
    """Return the model's configuration. Raises IntegrityError when it is absent or not a sound JSON object."""
    if CONFIG not in files.names:
        raise IntegrityError(
            "LM-CONFIG-MISSING",
            f"the model folder has no {CONFIG}",
            where={"source": source.uri},
            why="without it neither the architecture nor its sizes are known",
            hints=(f"copy {CONFIG} from the model's repository into the folder",),
        )
    return read_object(source, CONFIG, LONGEST_CONFIG, "LM-CONFIG-INVALID", lenient=True)


def read_generation(source: Source, files: Catalog) -> dict[str, Any]:
    """Return the model's generation defaults, empty when there are none. Raises IntegrityError when they are malformed."""
    if GENERATION not in files.names:
        return {}
    return read_object(source, GENERATION, LONGEST_CONFIG, "LM-CONFIG-INVALID", lenient=True)


def read_object(source: Source, name: str, longest: int, code: str, *, lenient: bool = False) -> dict[str, Any]:
    """Return a file's JSON object; `code` is the error's code when it has more than `longest` bytes or is malformed."""
    size = source.size(name)
    if size > longest:
        raise IntegrityError(code, f"{name} is too long", where={"file": name}, why=f"{size} bytes; {longest} are allowed")
    raw = source.read(name, 0, size)
    if error := pointer_error(raw[:LONGEST_POINTER], size):
        raise error.located(file=name)
    try:
        document = parse_object(raw, lenient=lenient)
        check_depth(document)
    except JsonFault as fault:
        raise IntegrityError(code, f"{name} is malformed", where={"file": name}, why=str(fault)) from None
    return document
