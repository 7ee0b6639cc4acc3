"""`loadmaster env`: what to paste into a bug report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from loadmaster.cli.options import json_option
from loadmaster.cli.session import Session
from loadmaster.cli.session_options import session_options

if TYPE_CHECKING:
    from loadmaster.host import PluginInfo


@click.command()
@json_option
@session_options
@click.pass_obj
def env(session: Session) -> None:
    """Show versions, limits of the machine, plugins and LOADMASTER_ variables. Imports neither torch nor a driver."""
    from loadmaster.machine import describe_machine

    machine = describe_machine()
    plugins, problem = _plugins(session)
    if session.json:
        from loadmaster.cli.output import print_document

        print_document(env=machine, plugins=plugins, plugin_problem=problem)
        return
    from loadmaster.display.machine_table import render_machine

    click.echo(render_machine(machine, plugins, problem))


def _plugins(session: Session) -> tuple[Sequence[PluginInfo], str]:
    """Return the plugins, or the reason why they cannot be used together: a bug report needs the rest all the same."""
    from loadmaster.host import PluginHost
    from loadmaster_hookspecs import LoadmasterError

    try:
        return PluginHost(session.selection).plugins, ""
    except LoadmasterError as error:
        return (), str(error)
