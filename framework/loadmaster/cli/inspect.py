"""`loadmaster inspect`: what a checkpoint holds, and how variants of it compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadmaster.cli.options import json_option
from loadmaster.cli.session import Session
from loadmaster.cli.session_options import session_options

if TYPE_CHECKING:
    from loadmaster.inspection import Inspection
    from loadmaster.perplexity import Perplexity


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--compare", is_flag=True, help="Show the models side by side, one row each.")
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --compare: load each model and measure its perplexity on this text.",
)
@click.option("--base", metavar="MODEL", help="Show what each MODEL, which is an adapter, does to this base model.")
@json_option
@session_options
@click.pass_obj
def inspect(session: Session, /, models: tuple[str, ...], compare: bool, text: Path | None, base: str | None) -> None:
    """Show what each MODEL holds: format, files, types, sizes and architecture. Reads headers and configuration only.

    With --compare, variants of one model are put side by side: bytes, bits per weight, and on request perplexity.
    """
    import loadmaster

    if text is not None and not compare:
        raise click.UsageError("--text needs --compare")
    if base is not None:
        _inspect_on(session, models, base)
        return
    found = [loadmaster.inspect(model, selection=session.selection) for model in models]
    scores = _perplexities(session, models, text) if text is not None else []
    if session.json:
        _print_json(found, scores, compare)
    elif compare:
        from loadmaster.display.comparison_table import render_comparison

        click.echo(render_comparison(found, scores))
    else:
        from loadmaster.display.inspection_table import render_inspection

        click.echo("\n\n".join(render_inspection(each) for each in found))


def _inspect_on(session: Session, adapters: Sequence[str], base: str) -> None:
    """Plan the adapters on a base model and show what becomes of them."""
    import loadmaster

    named = {Path(adapter).name or adapter: adapter for adapter in adapters}
    made = loadmaster.plan(base, adapters=named, selection=session.selection).data
    if session.json:
        from loadmaster.cli.output import print_document

        print_document(adapters=made.adapters, findings=made.findings)
    else:
        from loadmaster.display.adapters import render_adapters

        click.echo(render_adapters(made))


def _perplexities(session: Session, models: Sequence[str], text: Path) -> list[Perplexity]:
    """Load the models one after the other and let each predict the text."""
    import loadmaster
    from loadmaster.perplexity import perplexity

    content = text.read_text(encoding="utf-8")
    scores = []
    for model in models:
        with loadmaster.Engine(model, selection=session.selection) as engine:
            scores.append(perplexity(engine, content))
    return scores


def _print_json(found: Sequence[Inspection], scores: Sequence[Perplexity], compare: bool) -> None:
    from loadmaster.cli.output import print_document

    if len(found) == 1 and not compare:
        print_document(inspection=found[0])
        return
    rated = [{"bits_per_weight": each.bits_per_weight} for each in found]
    if scores:
        rated = [{**row, "perplexity": score.value} for row, score in zip(rated, scores, strict=True)]
    print_document(inspections=found, comparison=rated)
