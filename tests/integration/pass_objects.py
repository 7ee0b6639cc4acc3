"""Passes plugins as objects to engines. Run as `python pass_objects.py FOLDER` for a bigram model; prints JSON.

The plugins can be imported here, but no installed distribution registers them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import loadmaster_npy  # type: ignore[import-not-found]

import bigram_family
import loadmaster as lm
from loadmaster.plugin import FileRef, FormatLoader, PluginError, RangeReader, Source, hookimpl

STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec")
WITHOUT_TRANSFORMERS = lm.PluginSelection(blocked=("transformers",))


class Counting(loadmaster_npy.NpyFolder):  # type: ignore[misc]
    """Counts the files that ranks open, in the one object that this script holds."""

    def __init__(self) -> None:
        self.opened = 0

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        self.opened += 1
        reader: RangeReader = super().reader(source, file)
        return reader


class Holder:
    """A plugin of `__main__`, which no other process can import."""

    def __init__(self) -> None:
        self.format = Counting()

    @hookimpl
    def loadmaster_formats(self) -> Sequence[FormatLoader]:
        return [self.format]


def engine(folder: str, executor: str, ranks: int, plugin: object) -> lm.Engine:
    return lm.Engine(
        folder,
        executor=executor,
        tensor_parallel=ranks,
        plugins=[bigram_family, plugin],
        selection=WITHOUT_TRANSFORMERS,
    )


def main(folder: str) -> None:
    started: list[str] = []
    sys.addaudithook(lambda event, _: started.append(event) if event in STARTS else None)
    outcome: dict[str, object] = {}
    try:
        engine(folder, "multiprocess", 2, Holder())
    except PluginError as error:
        outcome["refused"] = [error.code, int(error.exit_code), list(started)]
    with engine(folder, "multiprocess", 1, loadmaster_npy) as made:
        outcome["processes"] = [made.logits([1, 2, 3]).tolist(), list(started)]
    for ranks in (1, 2):
        holder = Holder()
        with engine(folder, "inline", ranks, holder) as made:
            outcome[f"inline {ranks}"] = [made.logits([1, 2, 3]).tolist(), holder.format.opened]
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1])
