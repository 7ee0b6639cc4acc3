"""Executing a rank's operations: every planned byte goes from its file to its place in the arena, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Protocol

import numpy as np

from loadmaster_engine.load.arena import Arena
from loadmaster_engine.load.lanes import LANES, in_lanes, lanes_for
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.load.regions import Bytes, as_array, chunks, tight
from loadmaster_engine.plan.scratch import SCRATCH
from loadmaster_engine.plan.shares import FileRange
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError
from loadmaster_hookspecs.plan import CompareOp, RankPlan, ReadOp, Region, TransformRef
from loadmaster_hookspecs.transforms import Transform

COPY_BYTES = 16 << 20
"""Bytes moved between two progress reports, at most."""

TRANSFORM_BYTES = SCRATCH // (4 * LANES)
"""Source bytes that a transform gets at a time, at most: with a result twice as wide all lanes stay inside the scratch."""

BUNDLE_BYTES = 1 << 20
"""Bytes that a thread moves before it asks for more work, at least: handing over a small operation costs more than doing it."""

OVERREAD_BYTES = SCRATCH // LANES
"""Bytes of a range that is read to pick runs out of it, at most."""


Work = tuple[ReadOp, Region, Region]
"""A bounded part of an operation: the operation, the source bytes, and where they go."""

Write = Callable[[memoryview, Region], None]
"""Produces the bytes of a region of host memory."""

Check = Callable[[ReadOp, Region, Bytes], None]
"""Looks at what came of the source bytes of a part of an operation, and raises what is wrong with it."""


class Origin(Protocol):
    """Where bytes of files come from: the files themselves, or memory into which a rank has read them for all."""

    def read_into(self, file: int, offset: int, view: memoryview) -> None:
        """Fill `view` from byte `offset` of a file."""
        ...

    def gather(self, file: int, source: Region, memory: memoryview, dest: Region, *, mapped: bool) -> None:
        """Copy strided runs of a file to `dest` of `memory`."""
        ...


class Transfer:
    """Executes the operations of one rank's plan into its arena, and counts what it moves. `ranks` share the machine.

    At most `piece` bytes are moved at a time by one thread; with `concurrent` off everything is done by the calling thread.
    `check` is shown all bytes that are moved, while they are near.

    `held` has, after `run`, the bytes of every mapped file that parameters are views of; they keep the mapping alive.
    """

    def __init__(
        self,
        plan: RankPlan,
        files: FileSet,
        arena: Arena,
        transform: Callable[[str, int], Transform],
        ranks: int = 1,
        *,
        piece: int = COPY_BYTES,
        check: Check | None = None,
    ) -> None:
        self._ranks = ranks
        self._check = check
        self._piece = piece
        self._plan = plan
        self._files = files
        self._arena = arena
        self._transform = transform
        self.moved = 0
        self.viewed = 0
        self.held: dict[int, Bytes] = {}
        self.counters: Counter[str] = Counter()
        self._counting = Lock()
        self.concurrent = arena.concurrent

    def run(self, progress: Callable[[int], None]) -> None:
        """Do all of `pieces`, and call `progress` with the bytes done so far, on the calling thread."""
        for _ in self.pieces():
            progress(self.moved)

    def pieces(self) -> Generator[None]:
        """Map, read and copy everything in file order, but for operations `node_once`; then fill, and compare tied tensors.

        Yields after every bounded part. Work ends where the iterator is left or closed; what comes after the last byte is done
        before it ends.
        """
        for op in self._plan.reads:
            if op.via == "mapped":
                self._map(op)
        if self.viewed:
            yield
        for moved in self._copied():
            self.moved += moved
            yield
        for fill in self._plan.fills:
            self._arena.zero(fill.dest)
        for compare in self._plan.compares:
            self._compare(compare)

    def _map(self, op: ReadOp) -> None:
        """Check that the file holds the operation's bytes, and keep it mapped."""
        with self._explained(op):
            self._files.part(op.file, op.source)
            if op.file not in self.held:
                self.held[op.file] = self._files.whole(op.file)
        self.viewed += op.source.nbytes
        self.moved += op.source.nbytes

    def _copied(self) -> Iterator[int]:
        """Execute everything that has to be copied and yield the bytes of each part."""
        ops = [op for op in self._plan.reads if op.via not in ("mapped", "node_once")]
        work = [(op, *part) for op in ops for part in self.parts(op, op.source, op.dest)]
        ranges = [FileRange(op.file, source.offset, source.end) for op, source, _ in work]
        lanes = lanes_for(self._files, ranges, self._ranks) if self.concurrent else 1
        yield from in_lanes(self._files, list(bundles(work, len(work) // (4 * LANES))), self._execute_all, lanes)

    def _execute_all(self, files: FileSet, bundle: Sequence[Work]) -> int:
        return sum(self.execute(files, item) for item in bundle)

    def parts(self, op: ReadOp, source: Region, dest: Region) -> Iterator[tuple[Region, Region]]:
        """Cut an operation, or a part of one, so that neither what it reads nor what it transforms at a time is large."""
        limit = self._piece
        granule = (1, 1)
        if op.transform:
            limit = min(limit, TRANSFORM_BYTES)
            with self._explained(op):
                granule = self._transform(op.transform.name, op.transform.version).granule(op.transform.args)
        if op.via == "overread":
            limit = max(1, min(limit, OVERREAD_BYTES * op.source.nbytes // (op.source.end - op.source.offset)))
        return chunks(source, dest, limit, granule)

    def execute(self, files: Origin, item: Work) -> int:
        """Move a bounded part of an operation from `files` into the arena, and return its bytes of the file."""
        op, source, dest = item
        with self._explained(op):
            if op.transform:
                transform = self._transform(op.transform.name, op.transform.version)
                write = self._transformed(files, op, source, transform, op.transform)
            else:
                write = self._plain(files, op, source)
            self._arena.fill(dest, self._checked(op, source, write))
        return source.nbytes

    @contextmanager
    def _explained(self, op: ReadOp) -> Iterator[None]:
        """Say in every error which tensor and file it is about."""
        try:
            with self._files.explained(op.file, op.source.offset):
                yield
        except LoadmasterError as error:
            raise error.located(tensor=op.tensor) from error

    def _checked(self, op: ReadOp, source: Region, write: Write) -> Write:
        check = self._check
        if check is None:
            return write

        def write_and_look(memory: memoryview, dest: Region) -> None:
            write(memory, dest)
            check(op, source, as_array(memory, dest))

        return write_and_look

    def _plain(self, files: Origin, op: ReadOp, source: Region) -> Write:
        def write(memory: memoryview, dest: Region) -> None:
            if op.via == "direct":
                files.read_into(op.file, source.offset, memory[dest.offset : dest.end])
            else:
                files.gather(op.file, source, memory, dest, mapped=op.via == "gathered")

        return write

    def _transformed(self, files: Origin, op: ReadOp, source: Region, transform: Transform, ref: TransformRef) -> Write:
        def write(memory: memoryview, dest: Region) -> None:
            scratch = memoryview(bytearray(source.nbytes))
            self._dense(files, op, source, scratch)
            if dest.contiguous:
                self._count(transform.apply(scratch, memory[dest.offset : dest.end], ref.args))
                return
            out = memoryview(bytearray(dest.nbytes))
            self._count(transform.apply(scratch, out, ref.args))
            target = as_array(memory, dest)
            np.copyto(target, np.frombuffer(out, dtype=np.uint8).reshape(target.shape))

        return write

    def _count(self, counters: Mapping[str, int]) -> None:
        with self._counting:
            self.counters.update(counters)

    def _dense(self, files: Origin, op: ReadOp, source: Region, scratch: memoryview) -> None:
        """Bring the bytes of `source` together in `scratch`."""
        if op.via == "direct":
            files.read_into(op.file, source.offset, scratch)
            return
        files.gather(op.file, source, scratch, tight(source), mapped=op.via == "gathered")

    def _compare(self, op: CompareOp) -> None:
        """Raise IntegrityError LM-TIE-DIFFERS when the two stored tensors are not alike where this rank needs them."""
        for left, right in chunks(op.sources[0], op.sources[1], COPY_BYTES):
            own, other = (self._gathered(file, part) for file, part in zip(op.files, (left, right), strict=True))
            self.counters["compared"] += left.nbytes
            if own != other:
                raise IntegrityError(
                    "LM-TIE-DIFFERS",
                    "tied parameters differ in the file",
                    where={"parameter": op.parameter, "tensor": op.tensors[1]},
                    why=f"{op.tensors[0]} and {op.tensors[1]} are alike in every sample, but not in every byte",
                    hints=["load with untie, so that each gets its own storage"],
                )

    def _gathered(self, file: int, source: Region) -> memoryview:
        """Return the bytes of `source`, brought together."""
        scratch = memoryview(bytearray(source.nbytes))
        self._files.gather(file, source, scratch, tight(source), mapped=True)
        return scratch


def bundles(work: Sequence[Work], most: int) -> Iterator[list[Work]]:
    """Yield the work in order, in lists of small parts: up to `BUNDLE_BYTES` and, so that all threads get some, `most`."""
    bundle: list[Work] = []
    size = 0
    for item in work:
        if bundle and (size + item[1].nbytes > BUNDLE_BYTES or len(bundle) >= most):
            yield bundle
            bundle, size = [], 0
        bundle.append(item)
        size += item[1].nbytes
    if bundle:
        yield bundle
