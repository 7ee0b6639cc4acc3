"""The options that hold for every command. They may stand before or after the command's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from loadmaster.cli.session import Session

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def session_options(command: Decorated) -> Decorated:
    """Add the options to a command; their values reach it through its session (`ctx.obj`)."""
    # Eager, so that `--no-plugins --help` lists no commands of plugins.
    hidden_value: dict[str, Any] = {"expose_value": False, "is_eager": True}
    switch = {"is_flag": True, "callback": _switch, **hidden_value}
    options = (
        click.option("-p", "plugin_choices", multiple=True, metavar="NAME|no:NAME", callback=_extend, **hidden_value,
                     help="Demand a plugin, or leave it out. Repeatable."),
        click.option("--no-plugins", **switch, help="Use first-party plugins only."),
        click.option("-q", "--quiet", **switch, help="Show no progress and no load report."),
        click.option("-v", "--verbose", count=True, callback=_count, **hidden_value, help="Log more; -vv logs all."),
        click.option("--traceback", **switch, help="Show tracebacks of errors."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _extend(context: click.Context, _: click.Parameter, value: tuple[str, ...]) -> None:
    context.ensure_object(Session).plugin_choices.extend(value)


def _switch(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and parameter.name:
        setattr(context.ensure_object(Session), parameter.name, True)


def _count(context: click.Context, _: click.Parameter, value: int) -> None:
    context.ensure_object(Session).verbose += value
