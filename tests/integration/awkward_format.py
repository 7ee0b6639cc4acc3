"""A plugin for tests: safetensors that cannot be mapped, whose reads are slow or fail on one rank, as the environment asks.

`AWKWARD=0.05` makes every read wait for that many seconds; `AWKWARD=boom` makes every read of rank 1 raise.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from loadmaster_hookspecs import hookimpl
from loadmaster_hookspecs.findings import Match
from loadmaster_hookspecs.formats import CheckpointIndex, FileRef, FormatLoader
from loadmaster_hookspecs.sources import RangeReader, Source
from loadmaster_plugins import hf_safetensors


class AwkwardReader:
    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader

    def read_into(self, offset: int, view: memoryview) -> int:
        asked = os.environ["AWKWARD"]
        if asked != "boom":
            time.sleep(float(asked))
        elif Path("/proc/self/comm").read_text().strip().endswith("r1"):
            raise ValueError("boom-17")
        return self._reader.read_into(offset, view)

    def mapping(self) -> memoryview | None:
        return None

    def close(self) -> None:
        self._reader.close()


class AwkwardFormat:
    name = "awkward"

    def __init__(self) -> None:
        (self._sound,) = hf_safetensors.loadmaster_formats()

    def detect(self, source: Source) -> Match | None:
        return Match(score=1.0, evidence="the test asks for it") if os.environ.get("AWKWARD") else None

    def open(self, source: Source) -> CheckpointIndex:
        return msgspec.structs.replace(self._sound.open(source), format=self.name)

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        return AwkwardReader(self._sound.reader(source, file))


@hookimpl
def loadmaster_formats() -> list[FormatLoader]:
    return [AwkwardFormat()]
