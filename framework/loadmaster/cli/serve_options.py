"""The options of `loadmaster serve` that are settings of the serving engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

ENGINE_SETTINGS: Final = (
    "kv_bytes",
    "max_model_len",
    "max_running",
    "max_waiting",
    "max_batch_tokens",
    "prefix_cache",
    "adapter_bytes",
    "max_adapter_rank",
)
"""The settings that have an option; what is not given is left to the engine."""

_UNITS: Final = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


class ByteCount(click.ParamType[int]):
    """A number of bytes, with a unit or without: `512MiB`, `2GB`, `1073741824`."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes. Fails for anything that is no number of bytes."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", str(value).strip())
        unit = _UNITS.get(found[2].lower()) if found else None
        if found is None or unit is None or float(found[1]) * unit < 1:
            self.fail(f"{value!r} is not a number of bytes; write 512MiB, 2GB or 1073741824", param, ctx)
        return int(float(found[1]) * unit)


def engine_options(command: Decorated) -> Decorated:
    """Add the options to a command."""
    count: dict[str, Any] = {"type": click.IntRange(min=1), "metavar": "N"}
    options = (
        click.option("--kv-bytes", type=ByteCount(), metavar="BYTES",
                     help="Memory for keys and values, all ranks.  [default: what is left]"),
        click.option("--max-model-len", type=click.IntRange(min=2), metavar="N",
                     help="Longest context in tokens.  [default: what fits]"),
        click.option("--max-running", **count, help="Requests in a batch.  [default: as tuned, or 64]"),
        click.option("--max-waiting", type=click.IntRange(min=0), metavar="N",
                     help="Requests that may wait beside; 0 for any number.  [default: the engine's]"),
        click.option("--max-batch-tokens", **count, help="New tokens of a step.  [default: the engine's]"),
        click.option("--prefix-cache/--no-prefix-cache", default=None,
                     help="Reuse what equal beginnings have computed.  [default: the engine's]"),
        click.option("--adapter-bytes", type=ByteCount(), metavar="BYTES",
                     help="Memory for adapters, all ranks.  [default: the engine's]"),
        click.option("--max-adapter-rank", type=click.IntRange(min=0), metavar="N",
                     help="Largest rank of an adapter; 0 for any.  [default: the engine's]"),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command
