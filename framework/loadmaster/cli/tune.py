"""`loadmaster tune`: find out how many requests to compute at once, and keep it for serving."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from loadmaster.cli.options import json_option, model_argument, plan_options
from loadmaster.cli.output import print_document
from loadmaster.cli.serve_options import ByteCount
from loadmaster.cli.session import Session
from loadmaster.cli.session_options import session_options

if TYPE_CHECKING:
    from loadmaster.tuning.climb import Reading
    from loadmaster.tuning.tune import Wishes

WISHES: Final = ("kv_bytes", "max_batch_tokens", "prompt_tokens", "answer_tokens", "limit", "gain", "seconds")
"""The options that say what to measure. The others are the engine's."""


@click.command()
@model_argument
@plan_options
@click.option("--executor", metavar="inline|multiprocess", help="How ranks run.  [default: the engine's choice]")
@click.option(
    "--kv-bytes", type=ByteCount(), metavar="BYTES", help="Memory for keys and values, all ranks.  [default: what is left]"
)
@click.option(
    "--max-batch-tokens", type=click.IntRange(min=1), metavar="N", help="New tokens of a step.  [default: the engine's]"
)
@click.option(
    "--prompt-tokens", type=click.IntRange(min=1), default=128, show_default=True, metavar="N", help="Length of prompts."
)
@click.option(
    "--answer-tokens", type=click.IntRange(min=2), default=32, show_default=True, metavar="N", help="Steps that are timed."
)
@click.option("--limit", type=click.IntRange(min=1), default=256, show_default=True, metavar="N", help="Largest batch to try.")
@click.option(
    "--gain",
    type=click.IntRange(0, 100),
    default=10,
    show_default=True,
    metavar="PERCENT",
    help="What a doubling must gain to go on.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=120.0, show_default=True, metavar="S", help="Time for all batches."
)
@json_option
@session_options
@click.pass_obj
def tune(
    session: Session,
    /,
    model: str,
    **options: Any,
) -> None:
    """Load MODEL, time batches of 4, 8, 16, ... requests, and keep the best for `loadmaster serve`.

    A doubling that gains too few tokens per second is the last. The result is kept in the user's cache folder under the plan's
    digest; serving the same plan on the same kind of machine uses it unless --max-running says otherwise.
    """
    import asyncio

    from loadmaster.display.progress import open_display
    from loadmaster.display.tune_table import render_tuning
    from loadmaster.tuning import kept
    from loadmaster.tuning.tune import tune as measure

    wishes = _wishes(**{name: options.pop(name) for name in WISHES})
    kept.make_folder()

    def tell(reading: Reading) -> None:
        if not session.quiet:
            click.echo(f"tune      batch {reading.batch}: {reading.tokens_per_second:.1f} tokens/s", err=True)

    with open_display(sys.stderr, quiet=session.quiet) as display:
        result = asyncio.run(
            measure(
                model,
                wishes,
                selection=session.selection,
                on_event=display.handle,
                on_load=lambda engine: display.finish(engine.model.report),
                on_reading=tell,
                **options,
            )
        )
    file = kept.keep(result)
    if session.json:
        print_document(tuning=result, file=str(file))
    else:
        click.echo(render_tuning(result, str(file)))


def _wishes(
    *,
    kv_bytes: int | None,
    max_batch_tokens: int | None,
    prompt_tokens: int,
    answer_tokens: int,
    limit: int,
    gain: int,
    seconds: float,
) -> Wishes:
    from loadmaster.serving.settings import settings_from
    from loadmaster.tuning.climb import Bounds
    from loadmaster.tuning.reading import Load
    from loadmaster.tuning.tune import Wishes

    given = {"kv_bytes": kv_bytes, "max_batch_tokens": max_batch_tokens}
    return Wishes(
        load=Load(prompt_tokens=prompt_tokens, steps=answer_tokens),
        bounds=Bounds(limit=limit, gain=gain / 100, seconds=seconds),
        settings=settings_from({name: value for name, value in given.items() if value is not None}),
    )
