"""The ranks of one engine: the executor that runs them, and turns at using it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from loadmaster.adapters.moving import Answer
from loadmaster.bringup import init_method_for, record_for
from loadmaster.host import PluginHost
from loadmaster_engine.run.messages import decode
from loadmaster_engine.run.rendezvous import MeetingFile, check_init_method
from loadmaster_engine.serve.adapter_messages import AdapterState
from loadmaster_hookspecs.errors import ResourceError
from loadmaster_hookspecs.executors import EventSink, Executor, Result

STEP_TIMEOUT = 600.0
"""Seconds that one step of all ranks may take: a long prompt on a slow machine is one step."""

TURN_TIMEOUT = 3600.0
"""Seconds that a call waits while another thread's call has the ranks."""


class Ranks:
    """One or several ranks, each a process or in this one. Threads take turns: ranks work on one thing at a time.

    `record` tells processes how to make the plugin host, and `method` ranks how to meet. `executor` is for whoever has the
    turn.
    """

    def __init__(self, host: PluginHost, name: str, world_size: int, init_method: str, on_event: EventSink) -> None:
        self._factory = host.executor(name)
        self.separate = self._factory.separate_processes
        self._on_event = on_event
        self._lock = threading.RLock()
        self.record = record_for(self.separate, host)
        check_init_method(init_method, os.environ, world_size)
        self._meeting_file = MeetingFile(init_method)
        self.method = init_method_for(self.separate, init_method, world_size)
        self.executor = self._factory.create(preload=(), on_event=on_event)

    def preload(self, modules: Sequence[str]) -> None:
        """Have processes import modules before they are ranks. Begins at once and does not wait."""
        self.executor = self._factory.create(preload=modules, on_event=self._on_event)
        self.executor.prepare()

    def beside(self) -> Executor:
        """Return an executor that needs no turn. Its processes start at once with what those of the ranks have imported."""
        return self.executor.beside(on_event=lambda _: None)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let one thread at a time use the ranks: they hold one batch. Waits within a limit; a thread's turns nest."""
        if not self._lock.acquire(timeout=TURN_TIMEOUT):
            raise ResourceError(
                "LM-ENGINE-BUSY",
                f"the engine was busy with another thread's call for {TURN_TIMEOUT:.0f} s",
                hints=["ask for fewer tokens at a time, or use an engine of its own"],
            )
        try:
            yield
        finally:
            self._lock.release()

    def call(self, op: str, body: bytes | Sequence[bytes], timeout: float = STEP_TIMEOUT) -> list[Result]:
        """Send one call to all ranks, in a turn that the caller has."""
        return self.executor.call(op, body, timeout=timeout)

    def call_in_turn(self, op: str, body: bytes | Sequence[bytes]) -> list[Result]:
        """Wait for a turn and send one call to all ranks."""
        with self.turn():
            return self.call(op, body)

    def step(self, op: str, body: bytes) -> bytes:
        """Send one call to all ranks, in a turn that the caller has, and return the answer of rank 0."""
        return self.call(op, body)[0].body

    def ask_adapter(self, op: str, body: bytes | Sequence[bytes]) -> Answer:
        """Send a call about an adapter to all ranks, in a turn that the caller has."""
        begin = time.perf_counter()
        states = [decode(result.body, AdapterState) for result in self.call(op, body)]
        return Answer(states, time.perf_counter() - begin)

    @contextmanager
    def planner(self) -> Iterator[Executor]:
        """Yield what plans while the model runs.

        Where ranks are processes it runs beside them, so that calls go on. In this process it takes turns with them:
        modelling code changes settings of the whole process while a planner looks at it.
        """
        if not self.separate:
            with self.turn():
                yield self.executor
            return
        planner = self.executor.beside(on_event=self._on_event)
        try:
            yield planner
        finally:
            planner.stop()

    def end(self) -> None:
        """End all ranks and give their memory back. Safe to call twice."""
        self.executor.stop()
        self._meeting_file.clear()
