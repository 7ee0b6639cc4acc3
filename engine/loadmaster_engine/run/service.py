"""The service inside every worker: it takes its part of a plan through the stages and then answers steps."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from concurrent.futures import Future

from loadmaster_engine.load.arena import check_device
from loadmaster_engine.load.stages import RankLoad
from loadmaster_engine.plugin_host import PluginHost, rebuild_host
from loadmaster_engine.run.adapters.adapters import Adapters
from loadmaster_engine.run.batch import Batch, prefill_logits
from loadmaster_engine.run.building import begin_build
from loadmaster_engine.run.collectives import attach
from loadmaster_engine.run.groups import Group, Solo
from loadmaster_engine.run.joining import MeetingPoint
from loadmaster_engine.run.messages import Assignment, Meet, Memory, Prompts, Tokens, Turn, decode, encode
from loadmaster_engine.run.paged.part import ServingPart
from loadmaster_engine.run.sampler import Sampler
from loadmaster_engine.serve.messages import Sleep
from loadmaster_hookspecs.errors import UsageError, WorkerError
from loadmaster_hookspecs.events import StageStarted
from loadmaster_hookspecs.executors import EventSink, Result, WorkerSpec
from loadmaster_hookspecs.models import CausalModel

BUILD_SECONDS = 120.0
"""Seconds that binding waits for the model to be built, at most."""


class WorkerService:
    """One rank of one model.

    Ops, in order: assign, reserve, open, join, warm, share, exchange, load, bind, adapt where the plan has adapters, verify;
    then begin, append, end and logits for one batch, or probe, reserve_kv and step for many requests. Between any two of
    these, adapter_open, adapter_move, adapter_build and adapter_close bring adapters and take them away, and unmerge takes a
    merged one out of the weights. `sleep` gives memory back, `alive` answers at any time.
    """

    def __init__(self, host: PluginHost, rank: int) -> None:
        self._host = host
        self._rank = rank
        self._group: Group = Solo()
        self._assignment: Assignment | None = None
        self._meeting: MeetingPoint | None = None
        self._load: RankLoad | None = None
        self._building: Future[CausalModel] | None = None
        self._model: CausalModel | None = None
        self._adapters: Adapters | None = None
        self._batch: Batch | None = None
        self._sampler: Sampler | None = None
        self._serving: ServingPart | None = None
        self._ops: dict[str, Callable[[bytes, EventSink], Result]] = {
            "assign": self._assign,
            "open": self._open,
            "join": self._join,
            "reserve": self._reserve,
            "warm": self._warm,
            "share": self._share,
            "exchange": self._exchange,
            "load": self._read,
            "bind": self._bind,
            "adapt": self._adapt,
            "verify": self._verify,
            "begin": self._begin,
            "append": self._append,
            "end": self._end,
            "logits": self._logits,
            "probe": lambda body, _: self._served.probe(body),
            "reserve_kv": lambda body, _: self._served.reserve(body),
            "step": lambda body, _: self._served.step(body),
            "adapter_open": lambda body, _: self._adapted.open(body),
            "adapter_move": lambda body, _: self._adapted.move(body),
            "adapter_build": lambda body, _: self._adapted.build(body),
            "adapter_close": lambda body, _: self._adapted.close(body),
            "unmerge": self._unmerge,
            "sleep": self._sleep,
            "alive": lambda _body, _emit: Result(),
        }

    def handle(self, op: str, body: bytes, emit: EventSink) -> Result:
        """Answer one call. Raises UsageError for an unknown op, and whatever a stage raises."""
        if op not in self._ops:
            raise UsageError("LM-SERVICE-OP", f"the worker does not know the call {op!r}")
        return self._ops[op](body, emit)

    def abort(self) -> None:
        """Leave the group, so that a collective that waits for a failed rank ends."""
        self._group.close()

    def close(self) -> None:
        """Leave the group and close the files."""
        self._group.close()
        if self._adapters:
            self._adapters.end()
        if self._load:
            self._load.close()

    def _assign(self, body: bytes, emit: EventSink) -> Result:
        self._assignment = decode(body, Assignment)
        check_device(self._assignment.device, self._assignment.rank)
        self._load = RankLoad(self._host, self._assignment.plan, 0, self._assignment.device, emit)
        self._building = begin_build(self._host, self._assignment.plan)
        return Result()

    def _open(self, body: bytes, emit: EventSink) -> Result:
        assignment = self._assigned
        self._meeting = MeetingPoint(assignment.rank, assignment.world_size, assignment.device)
        return Result(body=encode(Meet(method=self._meeting.open(decode(body, Meet).method, os.environ))))

    def _join(self, body: bytes, emit: EventSink) -> Result:
        if self._meeting is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked to join before the meeting point was opened")
        with self._loading.stage("rendezvous"):
            self._group = self._meeting.join(decode(body, Meet).method, os.environ)
        return Result()

    def _reserve(self, body: bytes, emit: EventSink) -> Result:
        self._loading.reserve()
        return Result()

    def _warm(self, body: bytes, emit: EventSink) -> Result:
        self._loading.warm(self._assigned.share)
        return Result()

    def _share(self, body: bytes, emit: EventSink) -> Result:
        address = decode(body, Memory).address
        if bool(address) == (self._rank == 0):
            return Result()  # rank 0 has it already; the others have no address yet
        return Result(body=encode(Memory(address=self._loading.share(self._assigned.rounds, address))))

    def _exchange(self, body: bytes, emit: EventSink) -> Result:
        self._loading.exchange(decode(body, Turn).number)
        return Result()

    def _read(self, body: bytes, emit: EventSink) -> Result:
        self._loading.load()
        return Result()

    def _bind(self, body: bytes, emit: EventSink) -> Result:
        if self._building is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked to bind before it was given its part of the plan")
        model = self._building.result(timeout=BUILD_SECONDS)
        self._loading.bind(model)
        modules = self._assigned.plan.ranks[0].modules
        attach(model.module, modules, self._group)
        self._model = model
        self._adapters = Adapters(self._host, model.module, modules, self._group, self._device)
        return Result()

    def _adapt(self, body: bytes, emit: EventSink) -> Result:
        """Merge the plan's adapter, or make its adapters choosable, with the numbers from 1 on."""
        for number, load in enumerate(self._loading.adapters, 1):
            if self._assigned.plan.settings.adapter_mode == "merged":
                self._adapted.merge(load)
            else:
                self._adapted.take(number, load)
        self._loading.adapters = ()
        return Result()

    def _unmerge(self, body: bytes, emit: EventSink) -> Result:
        """Read again what merging changed. After an error the weights are of no use any more."""
        self._loading.replay(self._adapted.merged.touched)
        self._adapted.unmerge()
        return Result()

    def _verify(self, body: bytes, emit: EventSink) -> Result:
        report = self._loading.verify(self._running)
        emit(StageStarted(rank=self._rank, stage="serve"))
        return Result(body=encode(report))

    def _begin(self, body: bytes, emit: EventSink) -> Result:
        prompts = decode(body, Prompts)
        self._adapted.selection.one(prompts.adapter)
        self._batch = Batch(self._running, prompts.rows, self._device)
        self._sampler = Sampler(list(prompts.sampling))
        return self._drawn(self._sampler.draw(self._batch.prefill()))

    def _append(self, body: bytes, emit: EventSink) -> Result:
        if self._batch is None or self._sampler is None:
            raise WorkerError("LM-SERVICE-ORDER", "a token was appended to no batch")
        return self._drawn(self._sampler.draw(self._batch.append(decode(body, Tokens).ids)))

    def _end(self, body: bytes, emit: EventSink) -> Result:
        self._batch = self._sampler = None
        return Result()

    def _logits(self, body: bytes, emit: EventSink) -> Result:
        tokens = decode(body, Tokens)
        self._adapted.selection.one(tokens.adapter)
        logits = prefill_logits(self._running, tokens.ids, self._device)
        return Result(bulk=logits.numpy().tobytes()) if self._rank == 0 else Result()

    def _sleep(self, body: bytes, emit: EventSink) -> Result:
        """Give keys and values back, and with weights also the model: it is assigned, loaded and bound again afterwards."""
        self._serving = None
        if decode(body, Sleep).weights:
            self._loading.close()
            if self._adapters:
                self._adapters.end()
            self._load = self._building = self._model = self._batch = self._sampler = self._adapters = None
        # The model's modules refer to each other, so their memory would otherwise go some time later.
        gc.collect()
        return Result()

    def _drawn(self, ids: list[int]) -> Result:
        """Answer with the tokens on rank 0; the other ranks have drawn the same ones."""
        return Result(body=encode(Tokens(ids=tuple(ids)))) if self._rank == 0 else Result()

    @property
    def _assigned(self) -> Assignment:
        if self._assignment is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was called before it was given its part of the plan")
        return self._assignment

    @property
    def _loading(self) -> RankLoad:
        if self._load is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked to load before it was given its part of the plan")
        return self._load

    @property
    def _running(self) -> CausalModel:
        if self._model is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked to run before its model was bound")
        return self._model

    @property
    def _adapted(self) -> Adapters:
        if self._adapters is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked for adapters before its model was bound")
        return self._adapters

    @property
    def _served(self) -> ServingPart:
        if self._serving is None:
            self._serving = ServingPart(self._running, self._adapted, self._rank, self._device)
        return self._serving

    @property
    def _device(self) -> str:
        return self._assigned.device


def worker_service(spec: WorkerSpec) -> WorkerService:
    """Make the service in the worker's process: rebuild the plugin host and verify the manifest before anything else."""
    return WorkerService(rebuild_host(spec.host), spec.rank)
