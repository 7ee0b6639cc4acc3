"""`loadmaster inspect`: what a checkpoint holds."""

from __future__ import annotations

import click

from loadmaster.cli.options import json_option, model_argument
from loadmaster.cli.session import Session
from loadmaster.cli.session_options import session_options


@click.command()
@model_argument
@json_option
@session_options
@click.pass_obj
def inspect(session: Session, model: str) -> None:
    """Show what MODEL holds: format, files, types, sizes and architecture. Reads headers and configuration only."""
    import loadmaster

    found = loadmaster.inspect(model, selection=session.selection)
    if session.json:
        from loadmaster.cli.output import print_document

        print_document(inspection=found)
        return
    from loadmaster.display.inspection_table import render_inspection

    click.echo(render_inspection(found))
