"""Bringing ranks up: the planner, then every worker stage by stage, each with a limit on how long it may take."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from loadmaster.host import PluginHost, live_record
from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.plan.exchange import rounds
from loadmaster_engine.report import LoadReport, RankReport
from loadmaster_engine.run.joining import THREADS
from loadmaster_engine.run.messages import PLANNER, WORKER, Meet, Memory, PlanRequest, Turn, assign, decode, encode
from loadmaster_engine.run.rendezvous import RENDEZVOUS_TIMEOUT
from loadmaster_hookspecs.errors import LoadmasterError, from_report
from loadmaster_hookspecs.events import HOST_RANK, Event, Stage, StageFinished, StageStarted
from loadmaster_hookspecs.executors import Executor, HostRecord, WorkerSpec
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.plan import LoadPlan, PlanSettings

PLAN_TIMEOUT = 300.0
START_TIMEOUT = 180.0
STAGE_TIMEOUT = 120.0
"""Seconds for planning, for starting processes with all their imports, and for a stage that moves no weights."""

SLOWEST_STORAGE = 10e6
"""Bytes per second. A load that is slower than this on average is stopped as stalled."""


class Timeline:
    """The host's own stages: timed, and told to observers."""

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self.seconds: dict[str, float] = {}
        self._emit = emit

    @contextmanager
    def stage(self, name: Stage, nbytes: int = 0) -> Iterator[None]:
        """Time a stage. A stage that is entered again, as after a second plan, counts its latest run."""
        self._emit(StageStarted(rank=HOST_RANK, stage=name))
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        self._emit(StageFinished(rank=HOST_RANK, stage=name, seconds=self.seconds[name], nbytes=nbytes))


def record_for(separate_processes: bool, host: PluginHost) -> HostRecord:
    """Return how ranks get their plugin host: rebuilt in processes of their own, the very same one in this process.

    Raises PluginError LM-PLUGIN-NOT-IMPORTABLE for a plugin given as an object that other processes cannot import.
    """
    return host.record() if separate_processes else live_record(host)


def make_plan_in(
    executor: Executor,
    host: HostRecord,
    index: CheckpointIndex,
    settings: PlanSettings,
    timeline: Timeline,
    adapters: Sequence[AdapterRequest] = (),
) -> LoadPlan:
    """Return the plan, made by the executor's planner."""
    with timeline.stage("plan"):
        spec = WorkerSpec(rank=0, world_size=1, service=PLANNER, host=host)
        body = encode(PlanRequest(index=index, settings=settings, adapters=tuple(adapters)))
        try:
            return decode(executor.run_once(spec, "plan", body, timeout=PLAN_TIMEOUT).body, LoadPlan)
        except LoadmasterError as error:
            raise while_planning(error) from error.__cause__


def while_planning(error: LoadmasterError) -> LoadmasterError:
    """Return the planner's error without the rank that its process counts as: no rank exists yet."""
    places = {name: value for name, value in error.report.where.items() if name not in ("rank", "stage")}
    return from_report(msgspec.structs.replace(error.report, where={"stage": "plan", **places}))


def bring_up(
    executor: Executor, host: HostRecord, plan: LoadPlan, init_method: str, timeline: Timeline, *, again: bool = False
) -> tuple[RankReport, ...]:
    """Take all ranks from nothing to serving and return what each did.

    With `again` the ranks are there and know each other: they carry out the plan once more.
    """
    world = len(plan.ranks)
    with timeline.stage("spawn"):
        if not again:
            executor.start([_spec(host, rank, world) for rank in range(world)], timeout=START_TIMEOUT)
        executor.call("assign", assign(plan), timeout=STAGE_TIMEOUT)
    with timeline.stage("reserve"):  # first, because pages are made ready while ranks meet and cold files come in
        executor.call("reserve", b"", timeout=STAGE_TIMEOUT)
    if not again:
        with timeline.stage("rendezvous"):
            opened = executor.call("open", encode(Meet(method=init_method)), timeout=RENDEZVOUS_TIMEOUT)
            executor.call("join", opened[0].body, timeout=2 * RENDEZVOUS_TIMEOUT)
    total = sum(rank.bytes_planned for rank in plan.ranks)
    with timeline.stage("load", total):
        limit = STAGE_TIMEOUT + total / SLOWEST_STORAGE
        executor.call("warm", b"", timeout=limit)
        _exchange(executor, len(rounds(plan.ranks)[0]), limit)
        executor.call("load", b"", timeout=limit)
    with timeline.stage("bind"):
        executor.call("bind", b"", timeout=STAGE_TIMEOUT)
        if plan.adapters:
            executor.call("adapt", b"", timeout=STAGE_TIMEOUT)
    with timeline.stage("verify"):
        return tuple(decode(result.body, RankReport) for result in executor.call("verify", b"", timeout=STAGE_TIMEOUT))


def _exchange(executor: Executor, count: int, limit: float) -> None:
    """Have the ranks pass on what one of them reads for all, in `count` rounds.

    In the call after a round's own every rank copies out of it while the next one is read.
    """
    if not count:
        return
    made = executor.call("share", encode(Memory()), timeout=STAGE_TIMEOUT)
    executor.call("share", made[0].body, timeout=STAGE_TIMEOUT)
    for number in range(count + 1):
        executor.call("exchange", encode(Turn(number=number)), timeout=limit)


def init_method_for(separate_processes: bool, wanted: str, world_size: int) -> str:
    """Return how the ranks meet: threads of one process need no address."""
    return wanted if separate_processes or world_size == 1 else THREADS


def load_report(
    plan: LoadPlan, ranks: tuple[RankReport, ...], seconds: dict[str, float], memory_usable: int, notices: tuple[str, ...]
) -> LoadReport:
    """Return the report over all ranks."""
    return LoadReport(
        digest=plan.digest,
        seconds=seconds,
        bytes_planned=sum(rank.bytes_planned for rank in ranks),
        bytes_read=sum(rank.bytes_read for rank in ranks),
        bytes_unique=plan.ledger.bytes_unique,
        ranks=ranks,
        memory_usable=memory_usable,
        notices=notices,
    )


def overflow_notice(ranks: tuple[RankReport, ...], dtype: str) -> str:
    """Return a line for the user when a narrowing cast met values that the narrower type cannot hold, or an empty string."""
    count = sum(rank.counters.get("overflow", 0) for rank in ranks)
    return f"{count} values were too large for {dtype} and became infinite, counted over all ranks" if count else ""


def _spec(host: HostRecord, rank: int, world_size: int) -> WorkerSpec:
    """Return what a worker is told. Ranks of one node share its processors evenly."""
    threads = max(1, len(os.sched_getaffinity(0)) // world_size)
    return WorkerSpec(rank=rank, world_size=world_size, service=WORKER, host=host, threads=threads)
