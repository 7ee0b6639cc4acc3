"""Errors that people and programs can act on.

Every error says what happened, where, why and what to try, and has a stable code. It renders the same facts for a terminal
and for JSON, and it crosses a process border as an `ErrorReport`, never as a pickled exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import ClassVar

import msgspec


class ExitCode(IntEnum):
    """Exit codes of the command line. They are public and never change their meaning."""

    DONE = 0
    LOAD_FAILED = 1
    USAGE = 2
    PLAN_IMPOSSIBLE = 3
    PLUGIN_FAILED = 4
    DATA_INTEGRITY = 5
    RESOURCE_EXHAUSTED = 6
    INTERRUPTED = 130


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error as data: what the terminal, the JSON output and the control channel carry.

    `where` names the place (rank, stage, file, tensor, offset in bytes, module); `traceback` is the text of the worker's
    own traceback and is empty for errors that need none.
    """

    code: str
    summary: str
    where: dict[str, str | int] = {}
    why: str = ""
    hints: tuple[str, ...] = ()
    exit_code: int = ExitCode.LOAD_FAILED
    traceback: str = ""


class LoadmasterError(Exception):
    """Root of all errors that loadmaster raises on purpose.

    Args:
        code: stable identifier, `LM-` and upper-case words, for example `LM-FILE-TRUNCATED`.
        summary: one sentence that says what is wrong, without a full stop.
        where: names and values that locate the fault, in the order to print them.
        why: the facts behind the summary, with numbers and units.
        hints: what to try, most likely remedy first.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.LOAD_FAILED

    def __init__(
        self,
        code: str,
        summary: str,
        *,
        where: Mapping[str, str | int] | None = None,
        why: str = "",
        hints: Sequence[str] = (),
        traceback: str = "",
    ) -> None:
        super().__init__(summary)
        self.report = ErrorReport(
            code=code,
            summary=printable(summary),
            where={name: printable(value) if isinstance(value, str) else value for name, value in (where or {}).items()},
            why=printable(why),
            hints=tuple(map(printable, hints)),
            exit_code=int(self.exit_code),
            traceback=printable(traceback),
        )

    @property
    def code(self) -> str:
        """The stable code, for example `LM-PLAN-HEADS`."""
        return self.report.code

    @property
    def hints(self) -> tuple[str, ...]:
        """What to try, most likely remedy first."""
        return self.report.hints

    def located(self, **where: str | int) -> LoadmasterError:
        """Return the same error with more places in front of its own; existing names keep their value."""
        merged = {**where, **self.report.where}
        return from_report(msgspec.structs.replace(self.report, where=merged))

    def to_dict(self) -> dict[str, object]:
        """Return the facts as plain data, for JSON."""
        plain: dict[str, object] = msgspec.to_builtins(self.report)
        return plain

    def __str__(self) -> str:
        return render(self.report)


class UsageError(LoadmasterError):
    """The call itself is wrong: an unknown setting, a missing argument, an environment that is not set up."""

    exit_code = ExitCode.USAGE


class PlanError(LoadmasterError):
    """No valid plan exists: the model cannot be split as asked, is not supported, or does not fit."""

    exit_code = ExitCode.PLAN_IMPOSSIBLE


class PluginError(LoadmasterError):
    """A plugin failed, conflicts with another, is missing, or differs between processes."""

    exit_code = ExitCode.PLUGIN_FAILED


class IntegrityError(LoadmasterError):
    """The files are damaged, incomplete, hostile, or not what the plan was made from."""

    exit_code = ExitCode.DATA_INTEGRITY


class ResourceError(LoadmasterError):
    """Memory, shared memory, file descriptors or time ran out."""

    exit_code = ExitCode.RESOURCE_EXHAUSTED


class WorkerError(LoadmasterError):
    """A worker process failed, died or did not answer in time."""


_BY_EXIT_CODE: dict[int, type[LoadmasterError]] = {
    int(cls.exit_code): cls for cls in (WorkerError, UsageError, PlanError, PluginError, IntegrityError, ResourceError)
}


def printable(text: str) -> str:
    """Return `text` with lone surrogates escaped: they stand for undecodable bytes in names and cannot be sent or shown."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def from_report(report: ErrorReport) -> LoadmasterError:
    """Rebuild the exception that `report` was made from; its class follows from the exit code."""
    error = _BY_EXIT_CODE.get(report.exit_code, LoadmasterError)(report.code, report.summary)
    error.report = report
    return error


def render(report: ErrorReport) -> str:
    """Return the error as the lines a terminal shows, without the leading `error:`."""
    lines = [f"{report.summary}  [{report.code}]"]
    lines += [f"  {name:<8} {value}" for name, value in report.where.items()]
    if report.why:
        lines.append(f"  why      {report.why}")
    lines += [f"  try      {hint}" for hint in report.hints]
    if report.traceback:
        lines.append(report.traceback.rstrip())
    return "\n".join(lines)
