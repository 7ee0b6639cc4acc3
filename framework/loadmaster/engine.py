"""The engine: a model that is planned, loaded over its ranks, verified, and ready to answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, Self

import msgspec

from loadmaster import memory
from loadmaster.adapters import open_adapters
from loadmaster.adapters.faces import Adapters
from loadmaster.adapters.limits import AdapterLimits
from loadmaster.adapters.manager import AdapterManager
from loadmaster.adapters.moving import Answer
from loadmaster.adapters.planning import AdapterPlanning
from loadmaster.adapters.uses import BASE, Use
from loadmaster.bringup import (
    SLOWEST_STORAGE,
    STAGE_TIMEOUT,
    Timeline,
    bring_up,
    load_report,
    make_plan_in,
    overflow_notice,
)
from loadmaster.checkpoints import open_index
from loadmaster.completion import Completion, Prompt, as_token_ids, check_prompts, complete, encode_prompt, to_completion
from loadmaster.host import PluginHost, PluginSelection
from loadmaster.plans import Plan
from loadmaster.preloading import early_modules, modules_for
from loadmaster.ranks import Ranks
from loadmaster.sampling import Request, read_defaults
from loadmaster.tokenizing import TokenizerAhead, make_tokenizer
from loadmaster.updating import Update, Updates
from loadmaster_engine.collector import collector_paused
from loadmaster_engine.plan.preflight import preflight
from loadmaster_engine.report import LoadReport, RankReport
from loadmaster_engine.run.messages import PlanRequest, Tokens, encode
from loadmaster_engine.small_files import SmallFiles
from loadmaster_hookspecs.adapters import AdapterMode
from loadmaster_hookspecs.errors import IntegrityError, LoadmasterError, ResourceError, UsageError
from loadmaster_hookspecs.events import HOST_RANK, Event, Notice
from loadmaster_hookspecs.executors import EventSink
from loadmaster_hookspecs.models import Tokenizer
from loadmaster_hookspecs.plan import LoadPlan, PlanSettings, ReadMode

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Engine:
    """A loaded model. Use it as a context manager: leaving it ends its workers and gives their memory back.

    Calls from several threads take turns.

    Args:
        path: a folder or a single file.
        tensor_parallel: number of ranks to split the model over.
        executor: `inline` runs all ranks in this process, `multiprocess` one worker process per rank. Default: inline for one
            rank, multiprocess for several.
        dtype, device, read_mode, equal_ranks, strict, kernel, adapters, adapter_mode: as in `loadmaster.plan`.
        adapter_bytes: memory for adapters in bytes, over all ranks together. auto: what those given take, and a twentieth of
            the model's bytes or 64 MiB besides.
        max_adapter_rank: the highest rank that an adapter may have; 0 for no limit.
        distributed_init_method: how worker processes find each other: `auto`, `tcp://HOST:PORT`, `env://`, `file:///PATH`.
        on_event: called in this process with every event of the load.
        selection: which installed plugins take part (default: what the environment says).
        plugins: further plugins: modules, instances or import names. Worker processes import them by name; with the inline
            executor any object will do.

    The constructor returns when all ranks have verified what they loaded. It raises what `loadmaster.plan` raises,
    ResourceError when memory is short, and WorkerError, naming rank and stage, when a worker fails, dies or is too slow.
    """

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

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        *,
        max_tokens: int = 128,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        chat: bool = False,
        adapter: str | None = None,
    ) -> list[Completion]:
        """Complete prompts as one batch and return the answers in their order.

        Args:
            prompts: texts, or sequences of token ids; a single text is a batch of one.
            max_tokens: length of an answer in tokens, at most.
            temperature, top_k, top_p: sampling; None takes the model's own default, 0 as temperature the likeliest token.
            seed: makes sampling repeatable; row `i` uses `seed + i`.
            chat: treat every text as a user's message and render it with the model's chat template.
            adapter: the name of a loaded adapter to use; None for the model as it was loaded.

        Raises UsageError for values out of range, for an unknown adapter, and for prompts that are empty or too long, and
        IntegrityError LM-LOGITS-NAN when the model gives no numbers to draw a token from.
        """
        request = Request(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        batch: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)
        rows = [encode_prompt(prompt, self._tokenizer.get, chat=chat) for prompt in batch]
        outline = self._plan.data.outline
        check_prompts(rows, outline)
        if not rows:
            return []
        with self._computing(adapter) as use:
            answers = complete(rows, request, self._defaults, outline, self._ranks.step, use.number)
        tokenizer = self.tokenizer if self._has_tokenizer(batch) else None
        return [to_completion(ids, reason, tokenizer) for ids, reason in answers]

    def logits(self, token_ids: Sequence[int], *, adapter: str | None = None) -> npt.NDArray[np.float32]:
        """Return the prefill logits of one sequence, float32 [tokens, vocabulary], for verification.

        `adapter` is as in `generate`.
        """
        import numpy as np

        ids = as_token_ids(token_ids)
        check_prompts([ids], self._plan.data.outline)
        with self._computing(adapter) as use:
            body = encode(Tokens(ids=tuple(ids), adapter=use.number))
            results = self._ranks.call("logits", body)
        bulk = results[0].bulk
        if bulk is None:
            raise IntegrityError("LM-SERVICE-BULK", "rank 0 returned no logits")
        return np.frombuffer(bulk, dtype=np.float32).reshape(len(ids), -1).copy()

    def unmerge(self) -> None:
        """Take the merged adapter out of the weights: what it changed is read from the model's files again, to the same bits.

        Raises UsageError LM-USAGE-ADAPTER when nothing is merged. After any other error, such as IntegrityError for files that
        are not what they were, the engine has ended.
        """
        with self._ranks.turn():
            if not self.manager.merged:
                raise UsageError("LM-USAGE-ADAPTER", "no adapter is merged into the model")
            limit = STAGE_TIMEOUT + self._report.bytes_planned / SLOWEST_STORAGE
            self._ranks.call("unmerge", b"", limit)
            self.manager.unmerged()

    def update_weights(self, path: str | os.PathLike[str]) -> None:
        """Let other weights of the same model take the place of those that run, from a folder or a single file.

        They are planned with the same settings, loaded beside the old ones, which answer other threads' calls
        meanwhile, and verified; then all ranks change to them between two calls. Adapters are made again
        on the new weights. Tokenizer and sampling defaults stay. `plan` and `report` are then those of the new weights.

        Raises what the constructor raises, PlanError LM-UPDATE-MODEL or LM-UPDATE-DTYPE for weights of another model or type,
        ResourceError LM-MEMORY-FIT when there is no room for a second set, and UsageError LM-UPDATE-BUSY during another update.
        Whatever it raises, the old weights go on answering with the same bits; only WorkerError about a rank that died or
        fell silent ends the engine, as in any call.
        """
        with self._updates.alone():
            self._check_awake()
            with suppress(LoadmasterError):  # a tokenizer that cannot be made is told to whoever asks for it
                self._tokenizer.get()  # it stays that of the first folder, which may go once its weights are not used any more
            merged = self._adapters if self.manager.merged else ()
            update = self._updates.load(path, self._plan.data, merged, self._promised)
            try:
                lost = self._between_calls(partial(self._swap, update))
            except ResourceError:  # no moment came, and the old weights stay
                with suppress(LoadmasterError):
                    update.drop()
                raise
            self._plan, self._report = Plan(update.plan), update.report
            self.manager.plan_on(PlanRequest(index=update.source, settings=update.plan.settings))
            overflow = overflow_notice(update.report.ranks, update.plan.dtype)
            for line in (*lost.values(), *([overflow] if overflow else [])):
                self._notice(line)

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

    def _promised(self) -> int:
        """Return the bytes of free memory that belong to something already."""
        return 0

    def _between_calls(self, swap: Callable[[], dict[int, str]]) -> dict[int, str]:
        """Change weights while no request is under way, and return what `swap` does."""
        return swap()

    def _check_awake(self) -> None:
        """Raise UsageError when nothing can be computed for now."""

    def _swap(self, update: Update) -> dict[int, str]:
        """Change to new weights and make the live adapters on them again. Returns what to tell of those that cannot be."""
        with self._ranks.turn():
            update.swap(self._ranks.call)
            self.manager.forget()
            return self.manager.bring_back(self._ranks.ask_adapter)

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

    @contextmanager
    def _computing(self, adapter: str | None) -> Iterator[Use]:
        """Hold an adapter and take a turn to compute something. Raises UsageError LM-USAGE-ADAPTER when there is none such."""
        use = BASE if adapter is None else self.manager.residence.use(adapter)
        try:
            with self._ranks.turn():
                self._check_awake()
                use.check()
                yield use
        finally:
            use.release()

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

    def _has_tokenizer(self, prompts: Sequence[Prompt]) -> bool:
        """Return whether answers can be turned into text: prompts given as ids work without a tokenizer too."""
        if any(isinstance(prompt, str) for prompt in prompts):
            return True
        try:
            return bool(self.tokenizer)
        except UsageError:
            return False
