"""Errors of ranks: an exception as data, the error a caller sees, and the refusal that follows it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import cast

import msgspec

from loadmaster_engine.executors.last_seen import LastSeen
from loadmaster_hookspecs.errors import ErrorReport, LoadmasterError, UsageError, WorkerError, from_report, printable
from loadmaster_hookspecs.events import HOST_RANK, Failed, Stage


def report_of(error: BaseException) -> ErrorReport:
    """Return `error` as data: the own report of a LoadmasterError, `LM-WORKER-FAILED` with the traceback for any other."""
    if isinstance(error, LoadmasterError):
        return error.report
    kind = type(error).__name__
    message = printable(str(error)).strip().partition("\n")[0]
    return WorkerError(
        "LM-WORKER-FAILED",
        f"a rank failed with {kind}: {message}" if message else f"a rank failed with {kind}",
        traceback=printable("".join(traceback.format_exception(error))),
    ).report


def error_of(report: ErrorReport, rank: int, seen: LastSeen) -> LoadmasterError:
    """Return the exception for a rank's report, with `rank` and the last `stage` in its `where`."""
    return from_report(report).located(rank=rank, stage=seen.stage)


class Silent(msgspec.Struct, frozen=True):
    """A rank that did not answer: how to call it (`rank 1 (pid 7)`), what it was last seen doing, its Python stack or ""."""

    rank: int
    label: str
    seen: LastSeen
    stack: str


def silence(op: str, silent: Sequence[Silent], seconds: float) -> LoadmasterError:
    """Return `LM-WORKER-TIMEOUT` for the ranks that have not answered `op` within `seconds`, with their stacks."""
    ranks = ", ".join(str(one.rank) for one in silent)
    where: dict[str, str | int] = {
        "rank": silent[0].rank if len(silent) == 1 else ranks,
        "stage": silent[0].seen.stage,
        "op": op,
    }
    return WorkerError(
        "LM-WORKER-TIMEOUT",
        f"no answer to {op!r} from rank {ranks} within {seconds:g} s",
        where=where,
        why="; ".join(f"{one.label}: {one.seen}" for one in silent),
        hints=["the stacks below show what the silent ranks were doing", "allow more time when the machine is slow or loaded"],
        traceback="\n".join(f"{one.label}:\n{one.stack}" for one in silent if one.stack),
    )


def failed_event(error: LoadmasterError) -> Failed:
    """Return the event that tells observers of an error; it is the host's own where the error does not name one rank."""
    rank, stage = error.report.where.get("rank"), error.report.where.get("stage", "spawn")
    return Failed(
        rank=rank if isinstance(rank, int) else HOST_RANK,
        stage=cast(Stage, stage),
        code=error.code,
        summary=error.report.summary,
    )


def refusal(cause: BaseException) -> ErrorReport:
    """Return the error, as data, for calls to ranks that ended because of `cause`."""
    summary = cause.report.summary if isinstance(cause, LoadmasterError) else type(cause).__name__
    return WorkerError(
        "LM-EXECUTOR-ENDED",
        f"the ranks ended after an earlier error: {summary}",
        where=cause.report.where if isinstance(cause, LoadmasterError) else {},
        hints=["stop the executor and start it again"],
    ).report


def not_started() -> LoadmasterError:
    """Return the error for a call before `start` or after `stop`."""
    return UsageError("LM-EXECUTOR-NOT-STARTED", "the executor has no ranks to call", hints=["call start first"])


def not_prepared() -> LoadmasterError:
    """Return the error for ranks beside an executor that has not been prepared, or has been stopped."""
    return UsageError(
        "LM-EXECUTOR-NOT-PREPARED",
        "the executor beside which ranks were to start runs nothing",
        hints=["call its prepare first", "it ends what was started beside it when it stops"],
    )


def already_started() -> LoadmasterError:
    """Return the error for a second `start`."""
    return UsageError("LM-EXECUTOR-STARTED", "the executor has been started before", hints=["call stop before starting again"])


def one_each(bodies: bytes | Sequence[bytes], ranks: int) -> list[bytes]:
    """Return one body per rank from a call's argument. Raises UsageError when there are not as many bodies as ranks."""
    if isinstance(bodies, bytes):
        return [bodies] * ranks
    each = list(bodies)
    if len(each) != ranks:
        raise UsageError("LM-CALL-BODIES", f"a call needs one body for all or one for each of {ranks} ranks, not {len(each)}")
    return each
