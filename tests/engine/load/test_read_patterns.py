"""How storage is read: own bytes only, in few and large calls, several in flight, and memory that stays near the result."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from loadmaster.checkpoints import open_index
from loadmaster.host import PluginHost
from loadmaster_engine.load import warming
from loadmaster_engine.load.arena import HostArena
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.load.transfer import OVERREAD_BYTES, Transfer
from loadmaster_engine.load.warming import warm
from loadmaster_engine.plan import make_plan
from loadmaster_engine.plan.shares import FileRange, shares
from loadmaster_hookspecs.formats import FileRef
from loadmaster_hookspecs.plan import LoadPlan, PlanSettings
from loadmaster_hookspecs.sources import RangeReader, Source
from sparse_checkpoint import write_sparse

# 129 MB of which each of the four ranks holds a quarter; nothing but norms is replicated.
SHAPE = {
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 4096,
    "num_hidden_layers": 3,
    "vocab_size": 6400,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse(tmp_path_factory.mktemp("sparse"), **SHAPE).parent


def planned(folder: Path, **settings: object) -> tuple[PluginHost, LoadPlan]:
    host = PluginHost()
    return host, make_plan(host, open_index(host, folder), PlanSettings(**settings))  # type: ignore[arg-type]


class SlowLoader:
    """A format whose files cannot be mapped and answer every read call 5 ms late. Counts calls, sizes, and calls in flight."""

    name = "slow"

    def __init__(self, host: PluginHost, plan: LoadPlan) -> None:
        self._loader = host.format(plan.format)
        self.sizes: list[int] = []
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def reader(self, source: Source, file: FileRef) -> RangeReader:
        return SlowReader(self, self._loader.reader(source, file))

    def count(self, size: int) -> None:
        with self._lock:
            self.sizes.append(size)
            self._now += 1
            self.most = max(self.most, self._now)

    def ended(self) -> None:
        with self._lock:
            self._now -= 1


class SlowReader:
    def __init__(self, loader: SlowLoader, reader: RangeReader) -> None:
        self._loader, self._reader = loader, reader

    def read_into(self, offset: int, view: memoryview) -> int:
        self._loader.count(len(view))
        time.sleep(0.005)
        try:
            return self._reader.read_into(offset, view)
        finally:
            self._loader.ended()

    def mapping(self) -> memoryview | None:
        return None

    def close(self) -> None:
        self._reader.close()


@pytest.mark.parametrize(("ranks", "mode"), [(1, "direct"), (2, "direct"), (4, "overread")])
def test_storage_with_slow_calls_is_read_in_few_large_ones_at_once(folder: Path, ranks: int, mode: str) -> None:
    host, plan = planned(folder, tensor_parallel=ranks, read_mode=mode)
    loader = SlowLoader(host, plan)
    files = FileSet(plan, host.open_source(plan.source), loader)  # type: ignore[arg-type]
    rank = plan.ranks[ranks - 1]
    Transfer(rank, files, HostArena(rank.bytes), host.transform).run(lambda done: None)
    files.close()
    assert len(loader.sizes) <= 128
    assert loader.most > 1
    large = [size for size in loader.sizes if size >= 1 << 20]
    assert sum(large) > 0.9 * sum(loader.sizes)


def _peak() -> int:
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(row[1]) * 1024 for row in rows if row[0] == "VmHWM:")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# Row splits that are gathered leave pages of the file in the process too: shared by all ranks, reclaimable, and counted here.
@pytest.mark.parametrize(("mode", "limit"), [("direct", 0.6), ("overread", 0.5)])
def test_a_rank_needs_little_more_memory_than_its_part(folder: Path, mode: str, limit: float) -> None:
    host, plan = planned(folder, tensor_parallel=4, read_mode=mode)
    rank = plan.ranks[1]
    size = plan.files[0].size
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _resident()
    files = FileSet(plan, host.open_source(plan.source), host.format(plan.format))
    Transfer(rank, files, HostArena(rank.bytes), host.transform).run(lambda done: None)
    grown = _peak() - before
    files.close()
    assert 0.2 * size < grown < limit * size


@pytest.mark.parametrize("mode", ["auto", "mapped", "direct", "gathered"])
def test_four_ranks_take_every_byte_out_of_storage_once(folder: Path, mode: str) -> None:
    host, plan = planned(folder, tensor_parallel=4, read_mode=mode)
    size = plan.files[0].size
    assert sum(rank.bytes_charged for rank in plan.ranks) == plan.ledger.bytes_unique <= size
    assert sum(rank.bytes_planned for rank in plan.ranks) <= 1.1 * size
    total = 0
    for rank in plan.ranks:
        files = FileSet(plan, host.open_source(plan.source), host.format(plan.format))
        moved = Transfer(rank, files, HostArena(rank.bytes), host.transform)
        moved.run(lambda done: None)
        files.close()
        total += files.by_call + files.mapped + moved.viewed
    assert total <= 1.1 * size


def test_a_covering_range_is_bounded(folder: Path) -> None:
    host, plan = planned(folder, tensor_parallel=4, read_mode="overread")
    loader = SlowLoader(host, plan)
    files = FileSet(plan, host.open_source(plan.source), loader)  # type: ignore[arg-type]
    strided = tuple(op for op in plan.ranks[0].reads if op.via == "overread")
    assert strided
    for op in strided:
        for source, _ in Transfer(plan.ranks[0], files, HostArena(0), host.transform).parts(op, op.source, op.dest):
            assert source.end - source.offset <= OVERREAD_BYTES
    assert plan.ranks[0].scratch >= OVERREAD_BYTES
    files.close()


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["auto", "mapped", "gathered"])
def test_shares_cover_what_is_mapped_exactly_once(folder: Path, ranks: int, mode: str) -> None:
    _, plan = planned(folder, tensor_parallel=ranks, read_mode=mode)
    parts = sorted((part.file, part.start, part.stop) for share in shares(plan) for part in share)
    wanted = {
        byte for rank in plan.ranks for op in rank.reads if op.via != "direct" for byte in (op.source.offset, op.source.end - 1)
    }
    for (_, _, stop), (_, start, _) in pairwise(parts):
        assert stop <= start
    for byte in wanted:
        assert sum(start <= byte < stop for _, start, stop in parts) == 1
    sizes = [sum(part.stop - part.start for part in share) for share in shares(plan)]
    assert max(sizes) - min(sizes) <= 1
    assert not any(shares(planned(folder, tensor_parallel=1, read_mode="direct")[1]))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_node_has_eight_cold_pieces_in_flight(folder: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    host, plan = planned(folder, read_mode="mapped")
    files = FileSet(plan, host.open_source(plan.source), host.format(plan.format))
    cold = [(start << 20, start + 1 << 20) for start in range(40)]
    monkeypatch.setattr(warming, "absent", lambda mapping, start, stop, piece: cold)
    meeting = threading.Barrier(max(4, 8 // ranks), timeout=10)  # breaks unless that many are at work together
    plain = FileSet.read_into

    def read_into(self: FileSet, file: int, offset: int, view: memoryview) -> None:
        meeting.wait()
        plain(self, file, offset, view)

    monkeypatch.setattr(FileSet, "read_into", read_into)
    assert warm(files, [FileRange(0, 0, 40 << 20)], lambda done: None, ranks) == 40 << 20
    files.close()


def test_only_what_is_not_in_memory_is_warmed(tmp_path: Path) -> None:

    file = write_sparse(tmp_path, **{**SHAPE, "num_hidden_layers": 1})
    with file.open("r+b") as out:  # stored for real, so that it can leave the page cache
        out.seek(4096)
        for _ in range(20):
            out.write(os.urandom(1 << 20))
        out.flush()
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    host, plan = planned(tmp_path, read_mode="mapped")
    files = FileSet(plan, host.open_source(plan.source), host.format(plan.format))
    seen: list[int] = []
    first = warm(files, shares(plan)[0], seen.append)
    assert warm(files, shares(plan)[0], seen.append) == 0
    assert files.by_call == 0
    if not tmp_path.is_relative_to("/dev/shm"):
        assert first >= 20 << 20
        assert seen[-1] == first == max(seen)
