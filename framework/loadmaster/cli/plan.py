"""`loadmaster plan`: what a load would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loadmaster.cli.options import json_option, model_argument, plan_options
from loadmaster.cli.output import print_document, write_file
from loadmaster.cli.session import Session
from loadmaster.cli.session_options import session_options


@click.command()
@model_argument
@plan_options
@json_option
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the plan as JSON.")
@session_options
@click.pass_obj
def plan(session: Session, /, model: str, output: Path | None, **settings: Any) -> None:
    """Show which bytes of which file every rank of MODEL would read to where, and how much memory it takes.

    Reads headers and configuration only. Ends with exit code 3 and the splits that do work when this one is impossible.
    """
    import msgspec

    import loadmaster

    made = loadmaster.plan(model, **settings, selection=session.selection)
    if output is not None:
        write_file(output, made.to_json() + "\n")
    if session.json:
        print_document(plan=msgspec.Raw(made.to_json().encode()))
    else:
        click.echo(str(made))
