"""From the way a process ended to an error that says what happened and what to try. Pure functions."""

from __future__ import annotations

import signal

import msgspec

from loadmaster_engine.executors.last_seen import LastSeen
from loadmaster_hookspecs.errors import WorkerError

_HINTS: dict[int, tuple[str, ...]] = {
    signal.SIGKILL: (
        "likely out of memory: see dmesg and memory.events of the control group; fewer ranks or a smaller dtype need less",
        "if not, something else killed the process: a job manager, or a person",
    ),
    signal.SIGBUS: ("the checkpoint file shrank while it was mapped, or storage failed: check the file and dmesg",),
    signal.SIGSEGV: ("native code crashed: the stack below, if any, shows what Python had called",),
    signal.SIGABRT: ("native code gave up: its own message is on stderr",),
    signal.SIGILL: ("native code uses instructions that this CPU lacks: install builds made for it",),
    signal.SIGTERM: ("something asked the process to end: a job manager, or a person",),
}


class WorkerEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker ended. `code` is its exit code, minus the signal that killed it, or None when it has not ended but closed
    its channel. `oom_kills` counts the memory kills of the control group since the worker started (None: not known).
    `stack` is what the crash handler wrote."""

    rank: int
    pid: int
    code: int | None
    seen: LastSeen
    oom_kills: int | None = None
    stack: str = ""


def worker_death(end: WorkerEnd) -> WorkerError:
    """Return `LM-WORKER-DIED` for a worker that ended without being told to."""
    where: dict[str, str | int] = {"rank": end.rank, "stage": end.seen.stage, "pid": end.pid}
    if end.code is not None and end.code < 0:
        where["signal"] = signal_name(-end.code)
    elif end.code is not None:
        where["exit"] = end.code
    return WorkerError(
        "LM-WORKER-DIED",
        f"the worker of rank {end.rank} {end_text(end.code)}",
        where=where,
        why=f"process {end.pid} {end_text(end.code)} in {end.seen}{_memory_text(end)}",
        hints=_hints(end.code),
        traceback=end.stack,
    )


def server_death(pid: int, code: int | None, importing: str) -> WorkerError:
    """Return `LM-FORKSERVER-DIED` for a fork server that ended by itself; the kernel has ended its workers with it."""
    doing = f" while it imported {importing}" if importing else ""
    return WorkerError(
        "LM-FORKSERVER-DIED",
        f"the fork server {end_text(code)}, and all workers with it",
        where={"pid": pid},
        why=f"process {pid} {end_text(code)}{doing}",
        hints=_hints(code),
    )


def end_text(code: int | None) -> str:
    """Return how a process ended as the end of a sentence."""
    if code is None:
        return "closed its channel without exiting"
    if code < 0:
        return f"was killed by {signal_name(-code)}"
    return f"exited with code {code}"


def signal_name(number: int) -> str:
    """Return a signal's name, for example `SIGKILL`; real-time signals have none but their number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _hints(code: int | None) -> tuple[str, ...]:
    if code is not None and code < 0:
        return _HINTS.get(-code, ())
    return ("the process's own messages, if any, are on stderr",)


def _memory_text(end: WorkerEnd) -> str:
    if end.code != -signal.SIGKILL or not end.oom_kills:
        return ""
    return f"; the kernel killed {end.oom_kills} process(es) of this control group for memory since the workers started"
