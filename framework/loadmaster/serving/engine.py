"""The serving engine: many requests at once over one loaded model, from an event loop that it never blocks."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Self

from loadmaster.adapters.faces import AsyncAdapters
from loadmaster.completion import as_token_ids, check_prompts
from loadmaster.late import result_or_late
from loadmaster.ranks import TURN_TIMEOUT
from loadmaster.serving.adapter_calls import BetweenSteps
from loadmaster.serving.answer import Answer
from loadmaster.serving.deliveries import Deliveries
from loadmaster.serving.loop import StepLoop
from loadmaster.serving.model import ServedModel
from loadmaster.serving.params import check_params, wish_for
from loadmaster.serving.passing import on_passing_thread
from loadmaster.serving.settings import EngineSettings
from loadmaster.serving.stream import Stream
from loadmaster.serving.types import EngineStats, SamplingParams
from loadmaster_engine.serve.scheduler import Limits, Scheduler
from loadmaster_engine.serve.sequence import Sequence as Running
from loadmaster_hookspecs.errors import ResourceError, UsageError, WorkerError
from loadmaster_hookspecs.models import Tokenizer

CLOSE_SECONDS: Final = 30.0
"""Seconds that closing waits for the running step before the workers are ended in the middle of it."""

POLL_SECONDS: Final = 0.02


class AsyncEngine:
    """A loaded model that serves many requests at once (`loadmaster.serving.types.ServingEngine`).

    Args:
        path: a folder or a single file.
        settings: how to serve; see `EngineSettings`.
        options: everything that `loadmaster.Engine` takes: `tensor_parallel`, `executor`, `dtype`, `device`, ...

    The constructor loads the model and returns when it is ready; from an event loop use `await AsyncEngine.open(...)`. It
    raises what `loadmaster.Engine` raises, PlanError LM-SERVE-MODEL for models that cannot be served, and ResourceError when
    keys and values do not fit.
    """

    def __init__(self, path: str | os.PathLike[str], *, settings: EngineSettings | None = None, **options: Any) -> None:
        self._model = ServedModel(path, settings or EngineSettings(), **options)
        self.settings = self._model.settings
        self._kv = self._model.kv
        limits = Limits(
            block_size=self.settings.block_size,
            batch_tokens=self.settings.max_batch_tokens,
            running=self.settings.running,
            prefix_cache=self.settings.prefix_cache,
        )
        self._deliveries = Deliveries()
        self._loop = StepLoop(Scheduler(self._kv.blocks, limits), self._model.step, self._deliveries.flush)
        self._model.between_steps = self._with_lost_blocks
        self._numbers = itertools.count()
        self._stage = "serve"
        self._tokenizer = self._model.tokenizer_or_none()
        self._adapters = AsyncAdapters(self._model.manager)
        self._model.manager.residence.reach = BetweenSteps(self._loop)
        self._loop.start()

    @classmethod
    async def open(cls, path: str | os.PathLike[str], *, settings: EngineSettings | None = None, **options: Any) -> Self:
        """Load a model without blocking the event loop."""
        return await on_passing_thread(functools.partial(cls, path, settings=settings, **options))

    @property
    def model(self) -> ServedModel:
        """The loaded model with its plan, report and notices. It cannot compute while the engine is asleep."""
        return self._model

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises UsageError when none lies beside the weights."""
        return self._model.tokenizer

    @property
    def max_model_len(self) -> int:
        """The longest context in tokens, prompt and answer together."""
        return self._kv.max_model_len

    @property
    def adapters(self) -> AsyncAdapters:
        """The adapters that requests can name. They come and go in short pieces between steps."""
        return self._adapters

    def generate(self, prompt: Sequence[int], params: SamplingParams, *, adapter: str | None = "") -> Stream:
        """Queue a request and return the stream of its deltas. Call it on an event loop.

        `adapter` names one; None and an empty name stand for none. Raises UsageError for a prompt, an adapter or parameters
        that cannot be, ResourceError while draining and, with code LM-ENGINE-BUSY, when `max_waiting` requests wait, and
        WorkerError after a worker has failed.
        """
        ids = as_token_ids(prompt)
        check_params(params)
        check_prompts([ids], self._model.plan.data.outline)
        self._check(ids, params)
        adapter = adapter or ""
        use = self._model.manager.residence.use(adapter)
        try:
            wish = wish_for(params, self.max_model_len - len(ids), self._model.end_ids, use.number, use.key)
            sequence = Running(next(self._numbers), ids, wish, self.settings.block_size)
            stream = Stream(functools.partial(self._loop.cancel, sequence.number))
            tell = functools.partial(self._deliveries.add, stream.loop, stream.put)
            self._loop.submit(Answer(sequence, params, self._tokenizer, tell, adapter=adapter, use=use))
        except BaseException:  # boundary: a request that was not queued holds no adapter
            use.release()
            raise
        return stream

    def stats(self) -> EngineStats:
        """Return how the engine is doing. Never waits."""
        loop, counters, scheduler = self._loop, self._loop.counters, self._loop.scheduler
        return EngineStats(
            stage="failed" if loop.error else "asleep" if loop.asleep else self._stage,
            alive=loop.alive,
            last_step_age=time.monotonic() - loop.last_step,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            requests_done=counters.done,
            requests_failed=counters.failed,
            requests_cancelled=counters.cancelled,
            prompt_tokens=counters.prompt_tokens,
            generated_tokens=counters.generated_tokens,
            cached_tokens=counters.cached_tokens,
            preemptions=scheduler.preemptions,
            kv_blocks_used=scheduler.pool.used,
            kv_blocks_total=scheduler.pool.total,
            first_token_seconds=counters.take_first_token_seconds(),
            adapters=counters.adapters(),
        )

    async def sleep(self, level: Literal[1, 2] = 1) -> None:
        """Give memory back between two steps: that of keys and values (1), or that of the weights too (2).

        Requests that run or come stay, and go on after `wake`; what was computed for them is computed again. Sleeping deeper
        while asleep is possible.
        """
        if level not in (1, 2):
            raise UsageError(
                "LM-USAGE-SLEEP", f"there is no sleep of level {level!r}", hints=["1: keys and values, 2: weights too"]
            )
        await asyncio.wrap_future(self._loop.between_steps(functools.partial(self._fall_asleep, level)))
        await on_passing_thread(self._model.manager.rest)

    async def wake(self) -> None:
        """Take the memory back, by the same plan, and go on. Does nothing while awake.

        Adapters are there again, too. One whose files have changed or gone meanwhile is dropped with a notice, and requests
        that wait with it end with an error.

        Raises ResourceError LM-MEMORY-FIT, and stays asleep, when others have taken the memory meanwhile.
        """
        await asyncio.wrap_future(self._loop.between_steps(self._wake_up))

    async def update_weights(self, path: str | os.PathLike[str]) -> None:
        """Let other weights of the same model take the place of those that run, as `loadmaster.Engine.update_weights` does.

        Requests go on meanwhile. Those that run when the weights change keep their tokens so far, and go on with the new
        weights, with keys and values computed again. An update goes on when the wait for it is cancelled.
        """
        await on_passing_thread(functools.partial(self._model.update_weights, path))

    async def drain(self, timeout: float) -> bool:
        """Accept nothing new and wait for what runs, at most `timeout` seconds; return whether everything ended by itself.

        Nothing ends while the engine is asleep: then this returns at once.
        """
        self._stage = "drain"
        deadline = time.monotonic() + timeout
        while not self._loop.idle and not self._loop.asleep and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        return self._loop.idle

    async def close(self) -> None:
        """Cancel what runs and stop the workers. Safe to call twice."""
        self._stage = "closed"
        self._model.manager.end_loads()
        await on_passing_thread(functools.partial(self._loop.stop, CLOSE_SECONDS))
        await on_passing_thread(self._model.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _fall_asleep(self, level: int) -> None:
        self._model.sleep(weights=level == 2)
        self._loop.scheduler.lose_blocks()
        self._loop.asleep = True

    def _wake_up(self) -> None:
        if self._loop.asleep:
            lost = self._model.wake()
            for number, error in lost.items():
                self._loop.fail_adapter(number, error)
            self._loop.asleep = False
            self._model.tell(lost.values())

    def _with_lost_blocks(self, swap: Callable[[], dict[int, str]]) -> dict[int, str]:
        """Change weights between two steps: computed keys and values are of no use then."""

        def work() -> dict[int, str]:
            lost = swap()
            self._loop.scheduler.lose_blocks()
            for number, error in lost.items():
                self._loop.fail_adapter(number, error)
            return lost

        late = ResourceError("LM-ENGINE-BUSY", f"no moment between two steps came in {TURN_TIMEOUT:.0f} s")
        return result_or_late(self._loop.between_steps(work), TURN_TIMEOUT, late)

    def _check(self, ids: Sequence[int], params: SamplingParams) -> None:
        if len(ids) >= self.max_model_len:
            why = f"{len(ids)} tokens and one of an answer, contexts have {self.max_model_len} at most"
            raise UsageError("LM-USAGE-PROMPT", "the prompt is longer than the engine allows", why=why)
        if params.stop and self._tokenizer is None:
            raise UsageError("LM-USAGE-SAMPLING", "stop texts need a tokenizer", hints=["use stop_ids"])
        if self._loop.error:
            raise WorkerError("LM-ENGINE-FAILED", "the engine has failed and takes no more requests", why=self._loop.error)
        if self._stage != "serve":
            raise ResourceError("LM-ENGINE-DRAINING", "the engine takes no more requests", where={"stage": self._stage})
        limit = self.settings.running + self.settings.max_waiting
        if self.settings.max_waiting and self._loop.unfinished >= limit:
            why = f"{limit} are there: {self.settings.running} in a batch and {self.settings.max_waiting} that wait"
            raise ResourceError("LM-ENGINE-BUSY", "too many requests", why=why, hints=["ask again later"])
