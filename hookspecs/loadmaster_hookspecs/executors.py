"""How ranks are run: records that start a worker, and the protocol of the executors that run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from loadmaster_hookspecs.events import Event
from loadmaster_hookspecs.markers import API_VERSION

EventSink = Callable[[Event], None]
"""Receives events in the host process, on the thread that called the executor."""


class ManifestEntry(msgspec.Struct, frozen=True, array_like=True):
    """One active plugin, as it must be found again in every worker."""

    name: str
    distribution: str
    version: str
    value: str


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker rebuilds the plugin host: `factory` (`module:function`) is called with this record.

    `extra` lists plugins given as objects, as `module:qualname`; `blocked` and `allowed` are entry-point or distribution
    names; `api_version` is the contract version of the process that made the record. The worker compares what it finds with
    `manifest` before any work.
    """

    factory: str
    api_version: int = API_VERSION
    manifest: tuple[ManifestEntry, ...] = ()
    extra: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    allowed: tuple[str, ...] | None = None


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker process is told when it starts. `service` (`module:function`) makes the object that answers calls.

    `threads` is the number of compute threads the rank may use (0: leave it to the library).
    """

    rank: int
    world_size: int
    service: str
    host: HostRecord
    threads: int = 0


class Result(msgspec.Struct, kw_only=True):
    """A service's answer: a small msgpack `body`, and optionally bulk bytes that travel in memory, not on the channel."""

    body: bytes = b""
    bulk: bytes | bytearray | memoryview | None = None


class Service(Protocol):
    """The object inside a worker that answers calls, one at a time."""

    def handle(self, op: str, body: bytes, emit: EventSink) -> Result:
        """Answer `op`. May raise LoadmasterError or anything else; the executor carries it to the caller as an error."""
        ...

    def abort(self) -> None:
        """Break any wait on other ranks. Called from another thread, when ranks share a process and another one failed."""
        ...

    def close(self) -> None:
        """Release everything. Called once, also after a failure, unless the process is killed."""
        ...


ServiceFactory = Callable[[WorkerSpec], Service]


class Executor(Protocol):
    """Runs one service per rank and carries calls to them.

    The first error of any rank is raised in the caller with the rank in its `where`; a worker's death is a WorkerError that
    names rank, signal and last stage. No method waits longer than its `timeout` in seconds.
    """

    @property
    def name(self) -> str:
        """The executor's name, as the user chooses it."""
        ...

    def prepare(self) -> None:
        """Begin what takes long and needs no rank yet, such as imports in other processes, and return without waiting for it.

        What goes wrong there is told by the next `run_once` or `start`. `stop` ends it as well. Safe to call twice.
        """
        ...

    def run_once(self, spec: WorkerSpec, op: str, body: bytes, *, timeout: float) -> Result:
        """Make a service, send it one call, close it, and return the answer. Used for planning; may run before `start`."""
        ...

    def start(self, specs: Sequence[WorkerSpec], *, timeout: float) -> None:
        """Start one worker per spec and return when all of them answer."""
        ...

    def call(self, op: str, bodies: bytes | Sequence[bytes], *, timeout: float) -> list[Result]:
        """Send one call to every rank (one body for all, or one each) and return the answers in rank order."""
        ...

    def stop(self) -> None:
        """End all workers: ask, then kill. Leaves no process and no shared memory. Safe to call twice."""
        ...

    def beside(self, *, on_event: EventSink) -> Executor:
        """Return an executor with ranks of its own over what this one has prepared, such as imports in other processes.

        It may be used from another thread while this one runs calls, and neither sees the other's errors. Stopping it leaves
        this one alone. It needs this one: stop it first; processes that it still has then end with this one's, and calls to
        them raise LoadmasterError.
        """
        ...


class ExecutorFactory(Protocol):
    """Makes executors of one kind. Returned by the `loadmaster_executors` hook."""

    @property
    def name(self) -> str:
        """Unique name, for example `multiprocess`."""
        ...

    @property
    def separate_processes(self) -> bool:
        """Whether workers run outside the caller's process, so that plugins given as objects must be importable."""
        ...

    def create(self, *, preload: Sequence[str], on_event: EventSink) -> Executor:
        """Make an executor. `preload` names modules to import once before workers are forked. Starts nothing slow."""
        ...
