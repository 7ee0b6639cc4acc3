"""The service inside every worker: it takes its part of a plan through the stages and then answers steps."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from loadmaster_engine.plugin_host import PluginHost, rebuild_host
from loadmaster_engine.run.agreement import ADAPTER, Agreement
from loadmaster_engine.run.batch import Batch, prefill_logits
from loadmaster_engine.run.groups import Group, Solo
from loadmaster_engine.run.joining import MeetingPoint
from loadmaster_engine.run.loaded import LoadedModel
from loadmaster_engine.run.messages import Assignment, Meet, Memory, Prompts, ShadowState, Tokens, Turn, decode, encode
from loadmaster_engine.run.paged.part import ServingPart
from loadmaster_engine.run.sampler import Sampler
from loadmaster_engine.run.shadow import Shadow
from loadmaster_engine.serve.messages import Held, Sleep
from loadmaster_hookspecs.errors import UsageError, WorkerError
from loadmaster_hookspecs.events import StageStarted
from loadmaster_hookspecs.executors import EventSink, Result, WorkerSpec


class WorkerService:
    """One rank of one model.

    Ops, in order: assign, reserve, open, join, warm, share, exchange, load, bind, adapt where the plan has adapters, verify;
    then begin, append, end and logits for one batch, or probe, reserve_kv and step for many requests. Between any two of
    these, adapter_open, adapter_move, adapter_build and adapter_close bring adapters and take them away, and unmerge takes a
    merged one out of the weights. `sleep` gives memory back, `alive` and `held` answer at any time. The `shadow` ops load
    other weights meanwhile and put them in the place of the first.
    """

    def __init__(self, host: PluginHost, rank: int) -> None:
        self._host = host
        self._rank = rank
        self._group: Group = Solo()
        self._meeting: MeetingPoint | None = None
        self._current: LoadedModel | None = None
        self._shadow: Shadow | None = None
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
            "adapter_open": lambda body, _: self._loaded.adapters.open(body),
            "adapter_move": lambda body, _: self._loaded.adapters.move(body),
            "adapter_build": lambda body, _: self._loaded.adapters.build(body),
            "adapter_close": lambda body, _: self._loaded.adapters.close(body),
            "unmerge": self._unmerge,
            "sleep": self._sleep,
            "held": lambda _body, _emit: Result(body=encode(Held(nbytes=self._serving.held if self._serving else 0))),
            "shadow_begin": self._begin_shadow,
            "shadow_state": lambda _body, _emit: self._told(lambda _shadow: None),
            "shadow_adapt": lambda _body, _emit: self._told(Shadow.adapt),
            "shadow_try": lambda _body, _emit: self._told(lambda shadow: shadow.try_out(self._serving)),
            "shadow_drop": self._drop_shadow,
            "shadow_swap": self._swap,
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
        if self._shadow:
            self._shadow.drop()
        if self._current:
            self._current.close()

    def _assign(self, body: bytes, emit: EventSink) -> Result:
        self._current = LoadedModel(self._host, decode(body, Assignment), emit)
        return Result()

    def _open(self, body: bytes, emit: EventSink) -> Result:
        assignment = self._loaded.assignment
        self._meeting = MeetingPoint(assignment.rank, assignment.world_size, assignment.device)
        return Result(body=encode(Meet(method=self._meeting.open(decode(body, Meet).method, os.environ))))

    def _join(self, body: bytes, emit: EventSink) -> Result:
        if self._meeting is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked to join before the meeting point was opened")
        with self._loaded.loading.stage("rendezvous"):
            self._group = self._meeting.join(decode(body, Meet).method, os.environ)
        return Result()

    def _reserve(self, body: bytes, emit: EventSink) -> Result:
        self._loaded.loading.reserve()
        return Result()

    def _warm(self, body: bytes, emit: EventSink) -> Result:
        self._loaded.loading.warm(self._loaded.assignment.share)
        return Result()

    def _share(self, body: bytes, emit: EventSink) -> Result:
        address = decode(body, Memory).address
        if bool(address) == (self._rank == 0):
            return Result()  # rank 0 has it already; the others have no address yet
        return Result(body=encode(Memory(address=self._loaded.loading.share(self._loaded.assignment.rounds, address))))

    def _exchange(self, body: bytes, emit: EventSink) -> Result:
        self._loaded.loading.exchange(decode(body, Turn).number)
        return Result()

    def _read(self, body: bytes, emit: EventSink) -> Result:
        self._loaded.loading.load()
        return Result()

    def _bind(self, body: bytes, emit: EventSink) -> Result:
        self._loaded.bind(self._group)
        return Result()

    def _adapt(self, body: bytes, emit: EventSink) -> Result:
        # An error ends all ranks at once, so it need not be told in the agreement.
        agreement = Agreement(self._group, self._device, ADAPTER)
        self._loaded.adapt(agreement)
        agreement.done()
        return Result()

    def _unmerge(self, body: bytes, emit: EventSink) -> Result:
        """Read again what merging changed. After an error the weights are of no use any more."""
        self._loaded.unmerge()
        return Result()

    def _verify(self, body: bytes, emit: EventSink) -> Result:
        report = self._loaded.verify()
        emit(StageStarted(rank=self._rank, stage="serve"))
        return Result(body=encode(report))

    def _begin(self, body: bytes, emit: EventSink) -> Result:
        prompts = decode(body, Prompts)
        self._loaded.adapters.selection.one(prompts.adapter)
        self._batch = Batch(self._loaded.model, prompts.rows, self._device)
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
        self._loaded.adapters.selection.one(tokens.adapter)
        logits = prefill_logits(self._loaded.model, tokens.ids, self._device)
        return Result(bulk=logits.numpy().tobytes()) if self._rank == 0 else Result()

    def _sleep(self, body: bytes, emit: EventSink) -> Result:
        """Give keys and values back, and with weights also the model: it is assigned, loaded and bound again afterwards."""
        self._serving = None
        if decode(body, Sleep).weights:
            self._loaded.close()
            self._current = self._batch = self._sampler = None
        # The model's modules refer to each other, so their memory would otherwise go some time later.
        gc.collect()
        return Result()

    def _begin_shadow(self, body: bytes, emit: EventSink) -> Result:
        if self._shadow is not None:
            self._shadow.drop()  # nobody could take it back
        self._shadow = Shadow(self._host, decode(body, Assignment), self._group)
        return self._told(Shadow.begin)

    def _told(self, work: Callable[[Shadow], None]) -> Result:
        """Do something with the second set of weights and answer with its state."""
        work(self._shadowed)
        return Result(body=encode(self._shadowed.state()))

    def _drop_shadow(self, body: bytes, emit: EventSink) -> Result:
        """Forget the second set of weights, unless it has taken the place of the first."""
        return Result(body=encode(ShadowState(busy=False))) if self._shadow is None else self._told(Shadow.drop)

    def _swap(self, body: bytes, emit: EventSink) -> Result:
        """Let the second set of weights answer from now on, and give the memory of the first one back."""
        old = self._loaded
        self._current, self._serving = self._shadowed.loaded, self._shadowed.serving
        self._shadow = self._batch = self._sampler = None
        old.release()
        return Result()

    def _drawn(self, ids: list[int]) -> Result:
        """Answer with the tokens on rank 0; the other ranks have drawn the same ones."""
        return Result(body=encode(Tokens(ids=tuple(ids)))) if self._rank == 0 else Result()

    @property
    def _loaded(self) -> LoadedModel:
        if self._current is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was called before it was given its part of the plan")
        return self._current

    @property
    def _shadowed(self) -> Shadow:
        if self._shadow is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked for weights that nobody began to load")
        return self._shadow

    @property
    def _served(self) -> ServingPart:
        if self._serving is None:
            self._serving = ServingPart(self._loaded.model, self._loaded.adapters, self._rank, self._device)
        return self._serving

    @property
    def _device(self) -> str:
        return self._loaded.assignment.device


def worker_service(spec: WorkerSpec) -> WorkerService:
    """Make the service in the worker's process: rebuild the plugin host and verify the manifest before anything else."""
    return WorkerService(rebuild_host(spec.host), spec.rank)
