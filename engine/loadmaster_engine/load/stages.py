"""The stages of one rank, each callable on its own and each timed: assign, reserve, load, bind, verify."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from loadmaster_engine.attribution import AttributedFormat, AttributedTransform
from loadmaster_engine.load.adapters import AdapterLoad, load_adapter
from loadmaster_engine.load.arena import Arena, reserve
from loadmaster_engine.load.bind import bind, check_bound, move_buffers
from loadmaster_engine.load.exchange import Exchange
from loadmaster_engine.load.heap import trim_heap
from loadmaster_engine.load.process_io import ProcessIo, peak_rss, process_io
from loadmaster_engine.load.progress import ThrottledProgress
from loadmaster_engine.load.reading import FileSet
from loadmaster_engine.load.shared_memory import SharedMemory
from loadmaster_engine.load.transfer import Transfer
from loadmaster_engine.load.warming import warm
from loadmaster_engine.plan.exchange import Round, alone, shared_bytes
from loadmaster_engine.plan.shares import FileRange
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.report import RankReport
from loadmaster_hookspecs.errors import IntegrityError, WorkerError
from loadmaster_hookspecs.events import Stage, StageFinished, StageStarted
from loadmaster_hookspecs.executors import EventSink
from loadmaster_hookspecs.models import CausalModel
from loadmaster_hookspecs.plan import LoadPlan
from loadmaster_hookspecs.transforms import Transform


class RankLoad:
    """The load of rank plan number `part` of a plan: owns its files until they are read, and its arena for good.

    `adapters` has, once the load is done, those of the plan.
    """

    def __init__(self, host: PluginHost, plan: LoadPlan, part: int, device: str, emit: EventSink) -> None:
        self._host = host
        self._rank = plan.ranks[part]
        self._ranks = plan.settings.tensor_parallel
        self._adapters = [msgspec.structs.replace(adapter, ranks=(adapter.ranks[part],)) for adapter in plan.adapters]
        self._live = plan.settings.adapter_mode == "live"
        self.adapters: tuple[AdapterLoad, ...] = ()
        self._device = device
        self._dtype = plan.dtype
        self.emit = emit
        self._seconds: dict[str, float] = {}
        self._files = FileSet(plan, host.open_source(plan.source), AttributedFormat(host, host.format(plan.format)))
        self._arena: Arena | None = None
        self._transfer: Transfer | None = None
        self._shared: SharedMemory | None = None
        self._exchange: Exchange | None = None
        self._begun: set[Stage] = set()
        self._counters: dict[str, int] = {}

    def reserve(self, arena: Arena | None = None) -> None:
        """Reserve the arena, exactly the plan's size; or take memory that exists already as the arena."""
        with self.stage("reserve"):
            self._arena = arena or reserve(self._rank.bytes + self._rank.staging, self._device, self._rank.rank)

    def warm(self, ranges: Sequence[FileRange]) -> None:
        """Bring this rank's share of the node's mapped files into memory, where it is not there yet."""
        start = time.perf_counter()
        before = process_io()
        self._counters["warmed"] = warm(self._files, ranges, self._throttled(), self._ranks)
        self._counters["proc_warmed"] = process_io().stored - before.stored
        self._seconds["warm"] = time.perf_counter() - start

    def share(self, rounds: Sequence[Round], address: str) -> str:
        """Make the memory through which the ranks pass on bytes that one of them reads, or map that at `address`.

        Returns its address; an empty one when there are no such bytes.
        """
        if not rounds:
            return ""
        self._shared = SharedMemory(2 * shared_bytes(rounds), address)
        self._exchange = Exchange(self._rank, rounds, self._files, self.transfer, self._shared.bytes)
        return self._shared.address

    def exchange(self, number: int) -> None:
        """Read this rank's share of round `number` for all ranks, and copy its part of the round before it."""
        if self._exchange is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked to exchange bytes before memory was shared")
        self._begin("load")
        start = time.perf_counter()
        before = process_io()
        self._exchange.run(number, self._throttled())
        self._count_io(before)
        self._seconds["exchange"] = self._seconds.get("exchange", 0.0) + time.perf_counter() - start

    def load(self) -> None:
        """Execute every operation. Raises when the bytes that were read are not the bytes that were planned."""
        transfer = self.transfer
        with self.stage("load", self._rank.bytes_planned):
            before = process_io()
            self._unshare()
            transfer.run(self._throttled())
            self.arena.settle()
            self._files.close()
            self._load_adapters()
            self._count_io(before)
        if transfer.moved != self._rank.bytes_planned:
            raise IntegrityError(
                "LM-VERIFY-BYTES",
                "the bytes read are not the bytes planned",
                where={"rank": self._rank.rank},
                why=f"{self._rank.bytes_planned} planned, {transfer.moved} read",
            )

    def _load_adapters(self) -> None:
        begin = time.perf_counter()
        self.adapters = tuple(load_adapter(self._host, adapter, self._device) for adapter in self._adapters)
        if self.adapters:
            self._seconds["adapters"] = time.perf_counter() - begin

    def replay(self, parameters: Collection[str]) -> None:
        """Read the model's own bytes of some parameters again, to where they lie in the arena.

        Files are opened and checked before anything is written: raises IntegrityError when one is not what it was.
        """
        reads = tuple(op for op in self._rank.reads if op.parameter in parameters)
        fills = tuple(fill for fill in self._rank.fills if fill.parameter in parameters)
        part = alone(msgspec.structs.replace(self._rank, reads=reads, fills=fills, compares=()))
        try:
            for file in {op.file for op in reads}:
                self._files.mapping(file)
            Transfer(part, self._files, self.arena, self._transform, self._ranks).run(lambda _: None)
        finally:
            self._files.close()

    def bind(self, model: CausalModel) -> None:
        """Bind the model's parameters to the arena, and let kernels prepare the quantised ones."""
        with self.stage("bind"):
            if self._rank.packed:
                from loadmaster_engine.load.packed import install

                install(self._host, model.module, self._rank.packed, self._device, self._dtype)
            bind(model.module, self._rank.bindings, self.arena, self._transfer.held if self._transfer else {})
            move_buffers(model.module, self._device)
            if self._rank.packed:
                self._prepare(model)

    def _prepare(self, model: CausalModel) -> None:
        """Let kernels take what they need, then give back what they need no longer."""
        from loadmaster_engine.load.packed import drop_staged, prepare

        prepare(model.module)
        staged = [binding for binding in self._rank.bindings if binding.staged]
        if staged:
            drop_staged(model.module, [binding.parameter for binding in staged])
            self.arena.release(min(binding.offset for binding in staged))
            trim_heap()

    def verify(self, model: CausalModel) -> RankReport:
        """Prove that nothing is left without storage, and return what this rank did."""
        with self.stage("verify"):
            check_bound(model.module, self._rank.rank)
        return self.report()

    @property
    def arena(self) -> Arena:
        """The reserved arena."""
        if self._arena is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked to load before its arena was reserved")
        return self._arena

    def report(self) -> RankReport:
        """Return the bytes and seconds of the stages so far."""
        counters = dict(self._transfer.counters) if self._transfer else {}
        return RankReport(
            rank=self._rank.rank,
            seconds=dict(self._seconds),
            bytes_planned=self._rank.bytes_planned,
            bytes_read=self._transfer.moved if self._transfer else 0,
            bytes_repeated=self._rank.bytes_planned - self._rank.bytes_charged,
            bytes_by_call=self._files.by_call,
            bytes_mapped=self._files.mapped,
            bytes_viewed=self._transfer.viewed if self._transfer else 0,
            bytes_arena=self._rank.bytes,
            bytes_adapters=sum(adapter.ranks[0].bytes for adapter in self._adapters) if self._live else 0,
            peak_rss=peak_rss(),
            counters={**counters, **self._counters},
        )

    @property
    def transfer(self) -> Transfer:
        """What executes the rank's operations into its arena."""
        if self._transfer is None:
            self._transfer = Transfer(self._rank, self._files, self.arena, self._transform, self._ranks)
        return self._transfer

    def close(self) -> None:
        """Close the files. The arena lives as long as tensors that use it."""
        self._unshare()
        self._files.close()

    def release(self) -> None:
        """Close the files and let go of the arena: its memory goes with the last tensor that uses it."""
        self.close()
        self._arena = self._transfer = None

    @contextmanager
    def stage(self, name: Stage, nbytes: int = 0) -> Iterator[None]:
        """Time a stage and tell observers when it starts and ends."""
        self._begin(name)
        start = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - start
        self.emit(StageFinished(rank=self._rank.rank, stage=name, seconds=self._seconds[name], nbytes=nbytes))

    def _begin(self, name: Stage) -> None:
        """Tell observers that a stage starts, once."""
        if name not in self._begun:
            self._begun.add(name)
            self.emit(StageStarted(rank=self._rank.rank, stage=name))

    def _count_io(self, before: ProcessIo) -> None:
        after = process_io()
        for name, count in (("proc_called", after.called - before.called), ("proc_stored", after.stored - before.stored)):
            self._counters[name] = self._counters.get(name, 0) + count

    def _unshare(self) -> None:
        self._exchange = None
        if self._shared is not None:
            self._shared.close()

    def _transform(self, name: str, version: int) -> Transform:
        return AttributedTransform(self._host, self._host.transform(name, version))

    def _throttled(self) -> ThrottledProgress:
        return ThrottledProgress(self._rank, self.emit)
