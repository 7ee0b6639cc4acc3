"""The messages of the two kinds of channel: host to worker, and host to fork server. All are msgpack maps with a type tag."""

from __future__ import annotations

import signal

import msgspec

from loadmaster_hookspecs.errors import ErrorReport
from loadmaster_hookspecs.events import Event
from loadmaster_hookspecs.executors import WorkerSpec

DUMP_SIGNAL = signal.SIGUSR1
"""The signal upon which a worker writes the Python stacks of all its threads into its dump memfd."""

STARTED = 0
"""The request id under which a worker reports that its service was made."""


class Call(msgspec.Struct, frozen=True, tag=True):
    """Host to worker: answer `op`, under request id `id`, counted from 1."""

    id: int
    op: str
    body: bytes


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Host to worker: close the service and exit."""


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Worker to host: the result of request `id`. `bulk` bytes follow in a sealed memfd that comes along; -1: none."""

    id: int
    body: bytes = b""
    bulk: int = -1


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Worker to host: request `id` failed at time `at`, in seconds of the monotonic clock that all processes share."""

    id: int
    at: float
    report: ErrorReport


class Told(msgspec.Struct, frozen=True, tag=True):
    """Worker to host: an event for observers."""

    event: Event


class Setup(msgspec.Struct, frozen=True, tag=True):
    """Host to fork server, first of all: import these modules."""

    preload: tuple[str, ...]


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Host to fork server: start worker number `worker`. Its channel and the memfd for its stack dumps come along."""

    worker: int
    spec: WorkerSpec


class Importing(msgspec.Struct, frozen=True, tag=True):
    """Fork server to host: the import of `module` begins; empty when all are done."""

    module: str


class Unready(msgspec.Struct, frozen=True, tag=True):
    """Fork server to host: the import of a module failed; the server ends."""

    module: str
    report: ErrorReport


class Forked(msgspec.Struct, frozen=True, tag=True):
    """Fork server to host: worker number `worker` is process `pid`; a pidfd of it comes along."""

    worker: int
    pid: int


class NotForked(msgspec.Struct, frozen=True, tag=True):
    """Fork server to host: the system refused to start worker number `worker`."""

    worker: int
    reason: str


class Exited(msgspec.Struct, frozen=True, tag=True):
    """Fork server to host: worker number `worker` has ended; `code` is its exit code, or minus the signal that ended it."""

    worker: int
    code: int


ToWorker = Call | Stop
FromWorker = Reply | Failure | Told
ToServer = Setup | Fork
FromServer = Importing | Unready | Forked | NotForked | Exited

Message = ToWorker | FromWorker | ToServer | FromServer
