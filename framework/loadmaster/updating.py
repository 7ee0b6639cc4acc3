"""Other weights for a model that runs: what may take its place, and one update at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from loadmaster import memory
from loadmaster.bringup import Timeline, load_report, make_plan_in
from loadmaster.checkpoints import open_index
from loadmaster.host import PluginHost
from loadmaster.shadow_load import Call, ShadowLoad
from loadmaster_engine.plan.adapter_source import AdapterRequest
from loadmaster_engine.plan.preflight import preflight
from loadmaster_engine.report import LoadReport, RankReport
from loadmaster_engine.small_files import SmallFiles
from loadmaster_hookspecs.errors import IntegrityError, PlanError, ResourceError, UsageError
from loadmaster_hookspecs.events import HOST_RANK, Event, Notice
from loadmaster_hookspecs.executors import Executor, HostRecord
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.models import ModelOutline
from loadmaster_hookspecs.plan import LoadPlan, PlanSettings

LEAVE_SECONDS: Final = 10.0
"""Seconds that closing an engine waits for an update to leave the ranks alone."""


class Update(NamedTuple):
    """New weights that all ranks have loaded and verified. `swap`, between two steps, lets them answer; or `drop` forgets them.

    `source` is what they were planned from.
    """

    source: CheckpointIndex
    plan: LoadPlan
    report: LoadReport
    swap: Callable[[Call], None]
    drop: Callable[[], None]


class Updates:
    """Loads other weights beside those that run.

    Args:
        planner: gives the executor to plan with.
        call: sends one call to all ranks, between two steps.
        observe: is told of events, on the thread that updates.
    """

    def __init__(
        self,
        host: PluginHost,
        record: HostRecord,
        planner: Callable[[], AbstractContextManager[Executor]],
        call: Call,
        observe: Callable[[Event], None],
    ) -> None:
        self._host = host
        self._record = record
        self._planner = planner
        self._call = call
        self._observe = observe
        self._one = Lock()
        self._closing = False

    @property
    def running(self) -> bool:
        """Whether updates are kept out."""
        return self._one.locked()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep updates out, or do one. Raises UsageError LM-UPDATE-BUSY while one runs."""
        if not self._one.acquire(blocking=False):
            raise UsageError("LM-UPDATE-BUSY", "the weights are being updated", hints=["wait until the update has ended"])
        try:
            yield
        finally:
            self._one.release()

    def load(
        self,
        path: str | os.PathLike[str],
        old: LoadPlan,
        adapters: Sequence[AdapterRequest],
        promised: Callable[[], int],
    ) -> Update:
        """Plan, load and verify the weights at `path` for the model that `old` is the plan of.

        `promised` is as in `check_room`, looked at when the plan is made.
        """
        begin = time.perf_counter()
        timeline = Timeline(self._observe)
        settings = msgspec.structs.replace(old.settings, untie=False)
        with timeline.stage("index"):
            index = open_index(self._host, path)
            files = SmallFiles(self._host.open_source(index.source))
            check_outline(old.outline, preflight(self._host, index, settings, files))
        plan = self._plan(index, settings, adapters, timeline)
        shadow = ShadowLoad(self._call, self._check_open, self._observe)
        try:
            ranks = self._carry_out(shadow, old, plan, promised, timeline)
        except IntegrityError as error:
            if error.code != "LM-TIE-DIFFERS":
                raise
            plan = self._plan(index, msgspec.structs.replace(settings, untie=True), adapters, timeline)
            ranks = self._carry_out(shadow, old, plan, promised, timeline)
        seconds = {**timeline.seconds, "total": time.perf_counter() - begin}
        return Update(index, plan, load_report(plan, ranks, seconds, memory.available_memory(), ()), shadow.swap, shadow.drop)

    def close(self) -> None:
        """Break off the update that runs, and wait a while until it has left the ranks alone."""
        self._closing = True
        if self._one.acquire(timeout=LEAVE_SECONDS):
            self._one.release()

    def _plan(
        self, index: CheckpointIndex, settings: PlanSettings, adapters: Sequence[AdapterRequest], timeline: Timeline
    ) -> LoadPlan:
        with self._planner() as planner:
            plan = make_plan_in(planner, self._record, index, settings, timeline, adapters)
        for finding in plan.findings:
            self._observe(Notice(rank=HOST_RANK, text=finding.message))
        return plan

    def _carry_out(
        self, shadow: ShadowLoad, old: LoadPlan, plan: LoadPlan, promised: Callable[[], int], timeline: Timeline
    ) -> tuple[RankReport, ...]:
        check_dtype(old, plan)
        check_placements(old, plan)
        if plan.settings.device == "cpu":
            check_room(plan, memory.available_memory(), promised())
        with timeline.stage("load", sum(rank.bytes_planned for rank in plan.ranks)):
            return shadow.run(plan)

    def _check_open(self) -> None:
        if self._closing:
            raise ResourceError("LM-UPDATE-CLOSED", "the engine closes, and its weights are not updated any more")


def check_outline(old: ModelOutline, new: ModelOutline) -> None:
    """Raise PlanError LM-UPDATE-MODEL, naming what differs, when a configuration is not that of the model that runs."""
    pairs = ((name, getattr(old, name), getattr(new, name)) for name in ModelOutline.__struct_fields__)
    differing = [f"{name} {theirs} instead of {own}" for name, own, theirs in pairs if own != theirs]
    if differing:
        raise PlanError(
            "LM-UPDATE-MODEL",
            f"these are weights of another model: {differing[0]}",
            why="; ".join(differing[1:]),
            hints=["an update takes weights of the same architecture and sizes; start an engine of its own with others"],
        )


def check_dtype(old: LoadPlan, new: LoadPlan) -> None:
    """Raise PlanError LM-UPDATE-DTYPE when the new weights would be of another element type than the old ones."""
    if old.dtype != new.dtype:
        raise PlanError(
            "LM-UPDATE-DTYPE",
            f"the new weights are {new.dtype}, those that run {old.dtype}",
            hints=["start the engine with the dtype that you want: then weights of any type are cast to it"],
        )


def check_placements(old: LoadPlan, new: LoadPlan) -> None:
    """Raise PlanError LM-UPDATE-MODEL, naming a module, when ranks would own other parts: adapters are cut as the old ones.

    Quantised weights are cut at whole groups, plain ones anywhere.
    """
    for before, after in zip(old.ranks, new.ranks, strict=True):
        owned = {module.path: module.placement.owns for module in before.modules}
        differing = [each.path for each in after.modules if owned.get(each.path, each.placement.owns) != each.placement.owns]
        if differing:
            raise PlanError(
                "LM-UPDATE-MODEL",
                "the new weights would be divided among the ranks in another way",
                where={"rank": after.rank, "module": differing[0]},
                why=f"{len(differing)} modules differ: groups of quantised weights stay whole",
                hints=["start an engine of its own with them"],
            )


def check_room(plan: LoadPlan, available: int, promised: int) -> None:
    """Raise ResourceError LM-MEMORY-FIT when a second set of weights does not fit into `available` bytes.

    `promised` bytes of these belong to keys, values, activations and adapters, which may take them any time, and to matrices
    that are kept a second time.
    """
    weights, scratch = memory.weight_bytes(plan), memory.scratch_bytes(plan)
    if weights + scratch + promised <= available:
        return
    raise ResourceError(
        "LM-MEMORY-FIT",
        f"a second set of weights does not fit: {(weights + scratch + promised) / 1e9:.3f} GB needed, "
        f"{available / 1e9:.3f} GB available",
        why=f"weights {weights / 1e9:.3f} GB + scratch {scratch / 1e9:.3f} GB, and {promised / 1e9:.3f} GB are promised "
        "to keys, values, activations, adapters and arranged matrices",
        hints=[
            "the old weights stay until the new ones are verified: free memory",
            *(["start the engine with a smaller kv_bytes"] if promised else []),
        ],
    )
