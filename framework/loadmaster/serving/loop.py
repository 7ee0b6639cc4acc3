"""The loop that steps: one thread that takes requests in, has the workers compute, and hands out what comes of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

from loadmaster.serving.answer import Answer
from loadmaster.serving.counters import Counters
from loadmaster.serving.types import FinishReason
from loadmaster_engine.run.messages import decode, encode
from loadmaster_engine.serve.messages import Drawn
from loadmaster_engine.serve.scheduler import Scheduler
from loadmaster_hookspecs.errors import LoadmasterError, ResourceError, WorkerError, render

HEARTBEAT_SECONDS: Final = 2.0
"""Seconds without work after which the workers are asked whether they are there."""

SMOOTHING: Final = 0.2
"""Weight of the latest step in `step_seconds`."""

T = TypeVar("T")

Call = Callable[[str, bytes], bytes]
"""Sends one call to all ranks and returns the answer of rank 0."""


class Errand(NamedTuple):
    """Something to do between two steps."""

    work: Callable[[], Any]
    done: Future[Any]


class StepLoop:
    """Owns the scheduler and the thread. `submit`, `cancel` and `stop` may be called from any thread and never wait for a step.

    The first error of a worker fails every request, and the loop ends; `error` is then its text. `step_seconds` is about what
    a step takes lately.
    """

    def __init__(self, scheduler: Scheduler, call: Call, flush: Callable[[], None]) -> None:
        self.scheduler = scheduler
        self.counters = Counters()
        self.error = ""
        self.asleep = False
        self.last_step = time.monotonic()
        self.step_seconds = 0.0
        self._call = call
        self._flush = flush
        self._answers: dict[int, Answer] = {}
        self._lost: dict[int, str] = {}
        self._inbox: deque[Answer | int | Errand] = deque()
        self._news = threading.Condition()
        self._stopping = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="loadmaster-steps", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are worked on."""
        return self._thread.is_alive() and not self.error and not self._stopping

    @property
    def unfinished(self) -> int:
        """How many requests there are: those that run, those that wait, and those that were not looked at yet."""
        with self._news:
            return len(self._answers) + sum(isinstance(item, Answer) for item in self._inbox)

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        with self._news:
            return not self._inbox and not self._answers

    def submit(self, answer: Answer) -> None:
        """Queue a request. Raises WorkerError LM-ENGINE-FAILED or ResourceError LM-ENGINE-DRAINING when the loop has ended."""
        self._post(answer)

    def cancel(self, number: int) -> None:
        """Drop a request, if it has not ended."""
        self._post(number)

    def between_steps(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` done on the thread, between two steps. `asleep`, which it may set, ends and begins stepping.

        The future has what it returns or raises. Raises as `submit` does.
        """
        done: Future[T] = Future()
        self._post(Errand(work, done))
        return done

    def fail_adapter(self, number: int, error: str) -> None:
        """Note, between two steps, that an adapter is no longer there: requests that use it end, also those that come yet."""
        self._lost[number] = error

    def stop(self, timeout: float) -> bool:
        """Cancel all requests, end the thread after its step, and return whether it ended within `timeout` seconds."""
        with self._news:
            self._stopping = True
            self._news.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _post(self, item: Answer | int | Errand) -> None:
        with self._news:
            if not self._ended:
                self._inbox.append(item)
                self._news.notify()
            elif not isinstance(item, int):
                raise self._gone()

    def _gone(self) -> LoadmasterError:
        """Return why nothing is done any more: the engine failed, or it was closed."""
        if self.error:
            return WorkerError("LM-ENGINE-FAILED", "the engine has failed and does nothing more", why=self.error)
        return ResourceError("LM-ENGINE-DRAINING", "the engine was closed", hints=["start another one"])

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_in()
                self._turn()
                self._flush()
        except LoadmasterError as error:
            self.error = render(error.report)
        except Exception as error:  # boundary: whatever ends the loop reaches those who wait for it # noqa: BLE001
            self.error = f"{type(error).__name__}: {error}"
        self._take_in(last=True)
        for number in list(self._answers):
            self._end(number, "error" if self.error else "cancelled", self.error)
        self._flush()

    def _take_in(self, *, last: bool = False) -> None:
        """Take requests and cancellations out of the inbox; wait for some when there is nothing else to do."""
        with self._news:
            self._ended = last
            if not last and not self._inbox and not self._stopping and (self.asleep or not self._answers):
                self._news.wait(HEARTBEAT_SECONDS)
            items = list(self._inbox)
            self._inbox.clear()
            for item in items:
                if isinstance(item, Answer):
                    self._answers[item.sequence.number] = item
        for item in items:
            if isinstance(item, Answer):
                self.counters.begun(item.adapter, len(item.sequence.prompt))
                self.scheduler.add(item.sequence)
            elif isinstance(item, Errand):
                self._do(item, last)
            elif item in self._answers:
                self.scheduler.drop(self._answers[item].sequence)
                self._end(item, "cancelled")
        if items and self._lost:
            self._end_lost()

    def _end_lost(self) -> None:
        """End requests whose adapter is no longer there: a step with it would end the engine."""
        for number, answer in list(self._answers.items()):
            if error := self._lost.get(answer.sequence.wish.adapter):
                self.scheduler.drop(answer.sequence)
                self._end(number, "error", error)

    def _do(self, errand: Errand, last: bool) -> None:
        if not errand.done.set_running_or_notify_cancel():
            return  # nobody waits for it any more
        try:
            if last:
                raise self._gone()
            result = errand.work()
        except Exception as error:  # boundary: it belongs to who sent the errand # noqa: BLE001
            errand.done.set_exception(error)
        else:
            errand.done.set_result(result)

    def _turn(self) -> None:
        """Run one step, or a heartbeat when there is nothing to compute and the last one is a while ago."""
        step = None if self.asleep else self.scheduler.schedule()
        if step is None:
            if time.monotonic() - self.last_step >= HEARTBEAT_SECONDS:
                self._call("alive", b"")
                self.last_step = time.monotonic()
            return
        begin = time.monotonic()
        drawn = decode(self._call("step", encode(step)), Drawn)
        self.last_step = time.monotonic()
        self.step_seconds += SMOOTHING * (self.last_step - begin - self.step_seconds)
        for sequence, token, ending in self.scheduler.settle(drawn.tokens):
            self.counters.generated_tokens += ending != "error"
            answer = self._answers[sequence.number]
            if sequence.answered == 1:
                self.counters.cached(answer.adapter, sequence.cached)
            if reason := answer.take(token, ending):
                self.scheduler.drop(sequence)
                self._forget(sequence.number, reason)

    def _end(self, number: int, reason: FinishReason, error: str = "") -> None:
        self._answers[number].end(reason, error)
        self._forget(number, reason)

    def _forget(self, number: int, reason: FinishReason) -> None:
        answer = self._answers.pop(number)
        answer.use.release()
        self.counters.ended(reason, answer.first_token_seconds)
