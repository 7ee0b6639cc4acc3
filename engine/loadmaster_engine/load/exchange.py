"""Bytes that one rank reads for all ranks of the node: read into shared memory in rounds, and copied out of it by everyone.

The host calls every rank once per round and goes on when all have answered. So no rank waits for another one in here: a reader
that fails or dies is the error that the host sees, and nobody copies what was not read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from loadmaster_engine.load.lanes import in_lanes
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.load.regions import as_array
from loadmaster_engine.load.transfer import Transfer, Work
from loadmaster_engine.plan.exchange import Round, cut, shared_bytes
from loadmaster_hookspecs.errors import LoadmasterError
from loadmaster_hookspecs.plan import RankPlan, Region

READ_BYTES = 8 << 20
"""Bytes of one read call, at most."""


class Fetch(NamedTuple):
    """Bytes `start` to `stop` of file `file`, to be read to byte `place` of a round's memory."""

    file: int
    start: int
    stop: int
    place: int


class Window:
    """The ranges of one round as they lie in memory, in place of the files that they are of."""

    def __init__(self, one: Round, memory: memoryview) -> None:
        self._ranges = one.ranges
        self._starts = [(part.file, part.start) for part in one.ranges]
        self._places = [0, *accumulate(part.stop - part.start for part in one.ranges)]
        self._memory = memory

    def holds(self, file: int, source: Region) -> bool:
        """Return whether the round has the whole range that `source` spans."""
        index = bisect_right(self._starts, (file, source.offset)) - 1
        part = self._ranges[index]
        return index >= 0 and part.file == file and source.end <= part.stop

    def place(self, file: int, offset: int) -> int:
        """Return where a byte of a file lies in the memory."""
        index = bisect_right(self._starts, (file, offset)) - 1
        return self._places[index] + offset - self._ranges[index].start

    def read_into(self, file: int, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes of a file from `offset` on."""
        self.gather(file, Region(offset, len(view)), view, Region(0, len(view)))

    def gather(self, file: int, source: Region, memory: memoryview, dest: Region, *, mapped: bool = False) -> None:
        """Copy strided runs of a file to `dest` of `memory`."""
        here = Region(self.place(file, source.offset), source.run, source.steps)
        np.copyto(as_array(memory, dest), as_array(self._memory, here))


class Exchange:
    """One rank's side of all rounds. `memory` has two halves: while a round is copied out of one, the next is read."""

    def __init__(self, plan: RankPlan, rounds: Sequence[Round], files: FileSet, transfer: Transfer, memory: memoryview) -> None:
        self._rounds = rounds
        self._files = files
        self._transfer = transfer
        half = shared_bytes(rounds)
        self._halves = (memory[:half], memory[half:])
        self._windows = [Window(one, self._memory(number)) for number, one in enumerate(rounds)]
        self._parts = [(op, source, dest) for op in plan.reads if op.via == "node_once" for source, dest in cut(op)]

    def run(self, number: int, progress: Callable[[int], None]) -> None:
        """Read this rank's share of round `number`, and copy what the rank needs of the round before it.

        Calls `progress` with the bytes that the rank has moved so far.
        """
        fetches = list(self._fetches(number)) if number < len(self._rounds) else []
        copies = list(self._copies(number - 1)) if number else []
        if self._transfer.concurrent:
            moved = in_lanes(self._files, _in_turn(fetches, copies), partial(self._do, number))
        else:
            moved = chain(
                in_lanes(self._files, fetches, partial(self._do, number)),
                (self._do(number, self._files, copy) for copy in copies),
            )
        for count in moved:
            self._transfer.moved += count
            progress(self._transfer.moved)

    def _do(self, number: int, files: FileSet, item: Fetch | Work) -> int:
        """Read into the half of round `number`, or copy out of the other one; return the bytes that reached the arena."""
        if not isinstance(item, Fetch):
            return self._transfer.execute(self._windows[number - 1], item)
        size = item.stop - item.start
        try:
            with files.explained(item.file, item.start):
                files.read_into(item.file, item.start, self._memory(number)[item.place : item.place + size])
        except LoadmasterError as error:
            raise error.located(tensor=self._tensor(item)) from error
        return 0

    def _tensor(self, item: Fetch) -> str:
        """Return the tensor that a range begins in, or the first one that this rank takes of it."""
        spans = ((op.tensor, source) for op, source, _ in self._parts if op.file == item.file)
        return next((name for name, source in spans if source.offset < item.stop and source.end > item.start), "another rank's")

    def _fetches(self, number: int) -> Iterator[Fetch]:
        for part in self._rounds[number].share:
            for start in range(part.start, part.stop, READ_BYTES):
                stop = min(part.stop, start + READ_BYTES)
                yield Fetch(part.file, start, stop, self._windows[number].place(part.file, start))

    def _copies(self, number: int) -> Iterator[Work]:
        for op, source, dest in self._parts:
            if self._windows[number].holds(op.file, source):
                yield from ((op, *part) for part in self._transfer.parts(op, source, dest))

    def _memory(self, number: int) -> memoryview:
        return self._halves[number % 2]


def _in_turn(fetches: Sequence[Fetch], copies: Sequence[Work]) -> list[Fetch | Work]:
    """Return both lists as one in which they advance alike, so that lanes copy while others wait for storage."""
    placed: list[tuple[float, Fetch | Work]] = [((index + 0.5) / len(fetches), item) for index, item in enumerate(fetches)]
    placed += [((index + 0.5) / len(copies), item) for index, item in enumerate(copies)]
    return [item for _, item in sorted(placed, key=itemgetter(0))]
