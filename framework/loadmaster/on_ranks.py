"""A model on its ranks: opened, planned and loaded over them, verified, with its adapters, until it is closed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, Self

import msgspec

from loadmaster import memory
from loadmaster.adapters import open_adapters
from loadmaster.adapters.faces import Adapters
from loadmaster.adapters.limits import AdapterLimits
from loadmaster.adapters.manager import AdapterManager
from loadmaster.adapters.moving import Answer
from loadmaster.adapters.planning import AdapterPlanning
from loadmaster.bringup import Timeline, bring_up, load_report, make_plan_in, overflow_notice
from loadmaster.checkpoints import open_index
from loadmaster.host import PluginHost, PluginSelection
from loadmaster.plans import Plan
from loadmaster.preloading import early_modules, modules_for
from loadmaster.ranks import Ranks
from loadmaster.sampling import read_defaults
from loadmaster.tokenizing import TokenizerAhead, make_tokenizer
from loadmaster.updating import Updates
from loadmaster_engine.collector import collector_paused
from loadmaster_engine.plan.preflight import preflight
from loadmaster_engine.report import LoadReport, RankReport
from loadmaster_engine.run.messages import PlanRequest
from loadmaster_engine.small_files import SmallFiles
from loadmaster_hookspecs.adapters import AdapterMode
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.events import HOST_RANK, Event, Notice
from loadmaster_hookspecs.executors import EventSink
from loadmaster_hookspecs.models import Tokenizer
from loadmaster_hookspecs.plan import LoadPlan, PlanSettings, ReadMode


class ModelOnRanks:
    """What `loadmaster.Engine` stands on. It takes and raises what that does, and computes nothing itself."""

    @collector_paused()
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tensor_parallel: int = 1,
        executor: str | None = None,
        dtype: str = "auto",
        device: str = "cpu",
        read_mode: ReadMode = "auto",
        equal_ranks: bool = False,
        strict: bool = False,
        kernel: str = "auto",
        adapters: Mapping[str, str | os.PathLike[str]] | None = None,
        adapter_mode: AdapterMode = "live",
        adapter_bytes: int | Literal["auto"] = "auto",
        max_adapter_rank: int = 0,
        distributed_init_method: str = "auto",
        on_event: EventSink | None = None,
        selection: PluginSelection | None = None,
        plugins: Sequence[object] = (),
    ) -> None:
        begin = time.perf_counter()
        self._on_event = on_event
        self._notices: list[str] = []
        self._limits = AdapterLimits(nbytes=adapter_bytes, rank=max_adapter_rank)
        self._manager: AdapterManager | None = None
        self._host = PluginHost(selection, plugins)
        self._timeline = Timeline(self._observe)
        for notice in self._host.notices:
            self._notice(notice)
        settings = PlanSettings(
            tensor_parallel=tensor_parallel,
            dtype=dtype,
            device=device,
            read_mode=read_mode,
            equal_ranks=equal_ranks,
            strict=strict,
            kernel=kernel,
            adapter_mode=adapter_mode,
        )
        name = executor or ("inline" if tensor_parallel == 1 else "multiprocess")
        self._ranks = Ranks(self._host, name, tensor_parallel, distributed_init_method, self._observe)
        self._updates = Updates(self._host, self._ranks.record, self._ranks.planner, self._ranks.call_in_turn, self._observe)
        try:
            plan, ranks = self._start(path, settings, adapters or {})
        except BaseException:  # boundary: whatever interrupts the load, its workers must not outlive it
            self.close()
            raise
        self._plan = Plan(plan)
        seconds = {**self._timeline.seconds, "total": time.perf_counter() - begin}
        self._report = load_report(plan, ranks, seconds, self._memory.usable, tuple(self._notices))

    @property
    def plan(self) -> Plan:
        """The plan that was executed."""
        return self._plan

    @property
    def report(self) -> LoadReport:
        """What the load did: seconds and bytes in total, per stage and per rank."""
        return self._report

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines worth telling the user once, in the order in which they came up."""
        return tuple(self._notices)

    @property
    def updating(self) -> bool:
        """Whether weights are being updated."""
        return self._updates.running

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises UsageError when none lies beside the weights."""
        return self._tokenizer.get()

    @property
    def adapters(self) -> Adapters:
        """The adapters that calls can name. They can come and go while the engine is in use, between two calls."""
        return Adapters(self.manager)

    @property
    def manager(self) -> AdapterManager:
        """What `adapters` stands on, for engines that reach the ranks in their own way."""
        assert self._manager is not None, "adapters before the load"
        return self._manager

    def close(self) -> None:
        """End the workers and release their memory. Safe to call twice. An update that runs is broken off."""
        self._updates.close()
        if self._manager is not None:
            self._manager.close()
        self._ranks.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(
        self, path: str | os.PathLike[str], settings: PlanSettings, adapters: Mapping[str, str | os.PathLike[str]]
    ) -> tuple[LoadPlan, tuple[RankReport, ...]]:
        """Open, plan and load; imports in other processes begin as early as the configuration can be read."""
        early = early_modules(self._host, self._ranks.record, path)
        if early:
            self._ranks.preload(early)
        self._open(path, settings, adapters)
        if not early:
            self._ranks.preload(self._modules())
        if self._ranks.separate:
            self._tokenizer.begin()
        plan, ranks = self._load(settings)
        self._manager = self._manage_adapters(plan)
        for line in (self._defaults.notice, self._memory.notice, overflow_notice(ranks, plan.dtype)):
            if line:
                self._notice(line)
        return plan, ranks

    def _open(
        self, path: str | os.PathLike[str], settings: PlanSettings, adapters: Mapping[str, str | os.PathLike[str]]
    ) -> None:
        with self._timeline.stage("index"):
            self._index = open_index(self._host, path)
            preflight(self._host, self._index, settings, SmallFiles(self._host.open_source(self._index.source)))
            self._defaults = read_defaults(self._index)
            self._adapters = open_adapters(self._host, adapters)
        self._tokenizer = TokenizerAhead(partial(make_tokenizer, self._host, self._index))

    def _load(self, settings: PlanSettings) -> tuple[LoadPlan, tuple[RankReport, ...]]:
        """Plan and load. Tied tensors that turn out to differ in the file are planned again with storage of their own."""
        plan = make_plan_in(self._ranks.executor, self._ranks.record, self._index, settings, self._timeline, self._adapters)
        self._announce(plan)
        self._limits.check(plan)
        before = memory.available_memory()
        self._check_memory(plan, before)
        try:
            ranks = bring_up(self._ranks.executor, self._ranks.record, plan, self._ranks.method, self._timeline)
            self._memory = memory.Available(before, memory.available_memory())
            return plan, ranks
        except IntegrityError as error:
            if error.code != "LM-TIE-DIFFERS":
                raise
        self._ranks.end()
        return self._load(msgspec.structs.replace(settings, untie=True))

    def _modules(self) -> tuple[str, ...]:
        return modules_for(self._host, self._ranks.record, self._index.config)

    def _check_memory(self, plan: LoadPlan, available: int) -> None:
        """Refuse a plan that does not fit into `available` bytes, before anything is reserved."""
        if plan.settings.device == "cpu":
            memory.check_fit(plan, available)
            if line := memory.paging_notice(plan, available):
                self._notice(line)

    def _manage_adapters(self, plan: LoadPlan) -> AdapterManager:
        """Return what lets adapters come and go, with those of the plan."""
        base = PlanRequest(index=self._index, settings=plan.settings)
        ranks = self._ranks
        planning = AdapterPlanning(ranks.beside, ranks.separate, ranks.record, base, ranks.turn, self._notice)
        return AdapterManager(self._host, plan, self._limits, planning, self._ask_about_adapter, ranks.turn, self._notice)

    def _ask_about_adapter(self, op: str, bodies: bytes | Sequence[bytes]) -> Answer:
        """Send a call about an adapter to all ranks, in a turn that the caller has."""
        return self._ranks.ask_adapter(op, bodies)

    def _announce(self, plan: LoadPlan) -> None:
        for finding in plan.findings:
            self._notice(finding.message)

    def _observe(self, event: Event) -> None:
        if isinstance(event, Notice):
            self._notices.append(event.text)
        self._host.emit(event)
        if self._on_event:
            self._on_event(event)

    def _notice(self, text: str) -> None:
        self._observe(Notice(rank=HOST_RANK, text=text))
