"""The one place where an exception becomes what a person reads, what a program reads, and an exit code."""

from __future__ import annotations

import contextlib
import traceback

import click
import msgspec

from loadmaster.cli.session import Session
from loadmaster.cli.third_party import third_party_distributions
from loadmaster_hookspecs.errors import ErrorReport, ExitCode, LoadmasterError, printable, render


def report_failure(error: BaseException, session: Session) -> int:
    """Tell the user about `error` and return the exit code.

    Standard error gets `error: ...` lines; with `--json` standard output gets one document `{"ok": false, "error": {...}}`.
    """
    report = as_report(error, session)
    if session.traceback and error.__traceback__ is not None:
        click.echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    click.echo(f"error: {render(_for_terminal(report, session))}", err=True)
    if session.json:
        with contextlib.suppress(OSError):  # standard output may be what failed
            click.echo(msgspec.json.encode({"ok": False, "error": report}).decode())
    return report.exit_code


def as_report(error: BaseException, session: Session) -> ErrorReport:
    """Return any exception as an error report."""
    if isinstance(error, LoadmasterError):
        return error.report
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return ErrorReport(code="LM-INTERRUPTED", summary="interrupted", exit_code=ExitCode.INTERRUPTED)
    if isinstance(error, MemoryError):
        hints = ("split the model over more ranks", "see the sizes before loading: loadmaster plan MODEL")
        return _own(error, "LM-MEMORY", "out of memory", hints, ExitCode.RESOURCE_EXHAUSTED)
    summary = printable(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return _own(error, "LM-UNEXPECTED", " ".join(summary.split()), _advice(session), ExitCode.LOAD_FAILED)


def _own(error: BaseException, code: str, summary: str, hints: tuple[str, ...], exit_code: ExitCode) -> ErrorReport:
    trace = printable("".join(traceback.format_exception(error)))
    return ErrorReport(code=code, summary=summary, hints=hints, exit_code=exit_code, traceback=trace)


def _usage(error: click.ClickException) -> ErrorReport:
    context = error.ctx if isinstance(error, click.UsageError) else None
    hints = (f"{context.command_path} --help",) if context else ()
    summary = printable(" ".join(error.format_message().split()).rstrip("."))
    return ErrorReport(code="LM-USAGE", summary=summary, hints=hints, exit_code=ExitCode.USAGE)


def _for_terminal(report: ErrorReport, session: Session) -> ErrorReport:
    """Leave out the traceback text, or the part of it that was not asked for, and say how to get it."""
    if session.traceback or not report.traceback:
        return msgspec.structs.replace(report, traceback="") if report.code in _OWN_TRACEBACK else report
    hints = (*report.hints, "see where it happened: add --traceback")
    return msgspec.structs.replace(report, traceback="", hints=hints)


_OWN_TRACEBACK = frozenset({"LM-UNEXPECTED", "LM-MEMORY"})
"""Errors whose traceback is this process's own, which `--traceback` prints already."""


def _advice(session: Session) -> tuple[str, ...]:
    if session.no_plugins or not third_party_distributions():
        return ()
    return ("see whether a third-party plugin is to blame: add --no-plugins",)
