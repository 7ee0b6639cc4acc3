"""The `loadmaster` command itself: global options, and one run from arguments to exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import click

from loadmaster.cli.commands import LazyGroup
from loadmaster.cli.session import Session, wants_json
from loadmaster.cli.session_options import session_options

NAME: Final = "loadmaster"

BROKEN_PIPE: Final = 141
"""Exit code when the reader of standard output went away: what a shell reports for a process that SIGPIPE ended."""


@click.group(NAME, cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@session_options
@click.version_option(package_name=NAME, prog_name=NAME)
@click.pass_context
def program(context: click.Context) -> None:
    """Plan, load and run large language models: every byte is accounted for before it is read.

    MODEL is a folder with a checkpoint. Exit codes: 0 done, 1 load failed, 2 usage, 3 plan impossible, 4 plugin failure,
    5 data integrity, 6 resource exhausted, 130 interrupted.
    """
    session = context.ensure_object(Session)
    if session.verbose:
        _log_to_stderr(session.verbose)
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code. Prints errors, never raises them."""
    session = Session(json=wants_json(arguments))
    try:
        code = _invoke(arguments, session)
        if sys.stdout is not None:  # it is None when the caller closed it
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more when it ends, and must not fail there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # boundary: the end of the process
        from loadmaster.cli.failures import report_failure

        return report_failure(error, session)
    return code


def _invoke(arguments: Sequence[str], session: Session) -> int:
    if "_LOADMASTER_COMPLETE" in os.environ:
        program.main(prog_name=NAME)
    try:
        with program.make_context(NAME, list(arguments), obj=session) as context:
            program.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return 0


def _log_to_stderr(verbosity: int) -> None:
    import logging

    level = logging.INFO if verbosity == 1 else logging.DEBUG
    logging.basicConfig(level=level, format="%(relativeCreated)7.0f ms %(name)s: %(message)s", stream=sys.stderr)
