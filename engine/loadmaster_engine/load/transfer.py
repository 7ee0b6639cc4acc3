"""Executing a rank's operations: every planned byte goes from its file to its place in the arena, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from loadmaster_engine.load.arena import Arena
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.load.regions import as_array, chunks
from loadmaster_engine.plan.planner import SCRATCH
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError, ResourceError
from loadmaster_hookspecs.plan import CompareOp, RankPlan, ReadOp, Region, TransformRef
from loadmaster_hookspecs.transforms import Transform

COPY_BYTES = 16 << 20
"""Bytes moved between two progress reports, at most."""

TRANSFORM_BYTES = SCRATCH // 4
"""Source bytes that a transform gets at a time, at most: with a result twice as wide it stays inside the plan's scratch."""


class Transfer:
    """Executes the operations of one rank's plan into its arena, and counts what it moves."""

    def __init__(self, plan: RankPlan, files: FileSet, arena: Arena, transform: Callable[[str, int], Transform]) -> None:
        self._plan = plan
        self._files = files
        self._arena = arena
        self._transform = transform
        self.moved = 0
        self.counters: Counter[str] = Counter()

    def run(self, progress: Callable[[int], None]) -> None:
        """Execute every operation in file order, then compare tied tensors. Calls `progress` with the bytes moved so far."""
        for op in self._plan.reads:
            try:
                self._execute(op, progress)
            except LoadmasterError as error:
                raise error.located(tensor=op.tensor) from error
            except OSError as error:
                raise self._storage_error(op, error) from error
        for fill in self._plan.fills:
            self._arena.zero(fill.dest)
        for compare in self._plan.compares:
            self._compare(compare)

    def _execute(self, op: ReadOp, progress: Callable[[int], None]) -> None:
        transform = self._transform(op.transform.name, op.transform.version) if op.transform else None
        granule = transform.granule(op.transform.args) if transform and op.transform else (1, 1)
        limit = TRANSFORM_BYTES if transform else COPY_BYTES
        for source, dest in chunks(op.source, op.dest, limit, granule):
            if transform and op.transform:
                self._arena.fill(dest, self._transformed(op, source, transform, op.transform))
            else:
                self._arena.fill(dest, self._plain(op, source))
            self.moved += source.nbytes
            progress(self.moved)

    def _plain(self, op: ReadOp, source: Region) -> Callable[[memoryview, Region], None]:
        def write(memory: memoryview, dest: Region) -> None:
            if op.via == "direct":
                self._files.read_into(op.file, source.offset, memory[dest.offset : dest.end])
            else:
                self._gather(op.file, source, memory, dest)

        return write

    def _transformed(
        self, op: ReadOp, source: Region, transform: Transform, ref: TransformRef
    ) -> Callable[[memoryview, Region], None]:
        def write(memory: memoryview, dest: Region) -> None:
            scratch = memoryview(bytearray(source.nbytes))
            self._dense(op, source, scratch)
            if dest.contiguous:
                self.counters.update(transform.apply(scratch, memory[dest.offset : dest.end], ref.args))
                return
            out = memoryview(bytearray(dest.nbytes))
            self.counters.update(transform.apply(scratch, out, ref.args))
            target = as_array(memory, dest)
            np.copyto(target, np.frombuffer(out, dtype=np.uint8).reshape(target.shape))

        return write

    def _dense(self, op: ReadOp, source: Region, scratch: memoryview) -> None:
        """Bring the bytes of `source` together in `scratch`."""
        if op.via == "direct":
            self._files.read_into(op.file, source.offset, scratch)
            return
        self._gather(op.file, source, scratch, _tight(source))

    def _gather(self, file: int, source: Region, memory: memoryview, dest: Region) -> None:
        """Copy strided runs out of the shared mapping; without one, read the range that covers them."""
        mapping = self._files.mapping(file)
        if mapping is None:
            covering = memoryview(bytearray(source.end - source.offset))
            self._files.read_into(file, source.offset, covering)
            np.copyto(as_array(memory, dest), as_array(covering, Region(0, source.run, source.steps)))
            return
        if source.end > len(mapping):
            raise IntegrityError(
                "LM-FILE-TRUNCATED",
                "a file is shorter than the plan says",
                where={"file": self._files.name(file), "offset": source.offset},
                why=f"planned up to byte {source.end}, the file has {len(mapping)}",
            )
        np.copyto(as_array(memory, dest), as_array(mapping, source))
        self._files.mapped += source.nbytes

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
        self._gather(file, source, scratch, _tight(source))
        return scratch

    def _storage_error(self, op: ReadOp, error: OSError) -> LoadmasterError:
        return ResourceError(
            "LM-STORAGE-READ",
            "the storage reported an error",
            where={"file": self._files.name(op.file), "tensor": op.tensor, "offset": op.source.offset},
            why=str(error),
            hints=["check the disk or network storage, then load again"],
        )


def _tight(region: Region) -> Region:
    """Return the region of a dense buffer that the runs of `region` fill when they are written one after another."""
    steps, stride = [], region.run
    for count, _ in reversed(region.steps):
        steps.append((count, stride))
        stride *= count
    return Region(0, region.run, tuple(reversed(steps)))
