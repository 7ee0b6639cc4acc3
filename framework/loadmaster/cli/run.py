"""`loadmaster run`: load a model and let it answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadmaster.cli.options import json_option, model_argument, plan_options
from loadmaster.cli.output import check_writable, print_document, write_file
from loadmaster.cli.session import Session
from loadmaster.cli.session_options import session_options

if TYPE_CHECKING:
    from loadmaster import Completion
    from loadmaster_engine.report import LoadReport


@click.command()
@model_argument
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@plan_options
@click.option("--executor", metavar="inline|multiprocess", help="How ranks run.  [default: inline for one rank]")
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, metavar="N", help="Tokens per answer."
)
@click.option(
    "--temperature", type=click.FloatRange(min=0), metavar="T", help="0 takes the likeliest token.  [default: the model's]"
)
@click.option("--seed", type=int, metavar="S", help="Makes sampling repeatable.")
@click.option("--use", "adapter", metavar="NAME", help="Answer with this adapter.  [default: the only one, if there is one]")
@click.option("--chat", is_flag=True, help="Treat every PROMPT as a user's message.")
@json_option
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write the load report as JSON."
)
@session_options
@click.pass_obj
def run(
    session: Session,
    /,
    model: str,
    prompts: tuple[str, ...],
    executor: str | None,
    max_tokens: int,
    temperature: float | None,
    seed: int | None,
    adapter: str | None,
    chat: bool,
    report: Path | None,
    **settings: Any,
) -> None:
    """Load MODEL and print its answer to every PROMPT, one after the other, on standard output.

    Without a PROMPT one is read from standard input, unless that is a terminal; without any, MODEL is loaded and the load
    reported. Progress, notices and the load report go to standard error.
    """
    import loadmaster
    from loadmaster.display.progress import open_display

    if report is not None:
        check_writable(report)
    prompts = prompts or _prompt_from_stdin()
    adapter = adapter or _only(settings["adapters"])
    with (
        open_display(sys.stderr, quiet=session.quiet) as display,
        loadmaster.Engine(model, executor=executor, on_event=display.handle, selection=session.selection, **settings) as engine,
    ):
        display.finish(engine.report)
        if report is not None:
            write_file(report, _report_json(engine.report))
        answers = (
            engine.generate(prompts, max_tokens=max_tokens, temperature=temperature, seed=seed, chat=chat, adapter=adapter)
            if prompts
            else []
        )
        notices = list(engine.notices)
    if session.json:
        print_document(completions=answers, report=engine.report.to_dict(), notices=notices)
    else:
        _print_answers(prompts, answers, session)


def _only(adapters: Mapping[str, str]) -> str | None:
    """Return the name of the only adapter, or None where there is none or a choice."""
    return next(iter(adapters)) if len(adapters) == 1 else None


def _prompt_from_stdin() -> tuple[str, ...]:
    """Return what standard input holds as one prompt, without the line end after it; nothing on a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        return ()
    text = sys.stdin.read().removesuffix("\n")
    return (text,) if text else ()


def _print_answers(prompts: Sequence[str], answers: Sequence[Completion], session: Session) -> None:
    """Print the answers on standard output; with several, the prompt before each goes to standard error."""
    for prompt, answer in zip(prompts, answers, strict=True):
        if len(answers) > 1 and not session.quiet:
            click.echo(f"prompt    {' '.join(prompt.split())[:100]}", err=True)
        click.echo(answer.text)


def _report_json(report: LoadReport) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(report.to_dict())).decode() + "\n"
