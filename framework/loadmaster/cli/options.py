"""The arguments and options that several commands share, each defined once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from loadmaster_hookspecs.adapters import AdapterMode
from loadmaster_hookspecs.plan import ReadMode

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

DTYPES = ("auto", "float32", "bfloat16", "float16")
"""The types that the planner knows; it is not asked here, since importing it takes longer than `--help` may."""


def model_argument(command: Decorated) -> Decorated:
    """Add the MODEL argument: a folder or any other address that a source plugin opens."""
    return click.argument("model", metavar="MODEL")(command)


def json_option(command: Decorated) -> Decorated:
    """Add `--json`. Its value reaches the command through the session, which has looked for it before."""
    return click.option("--json", is_flag=True, expose_value=False, help="Print exactly one JSON document on stdout.")(command)


def _adapters(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return the adapters' folders by name."""
    paths: dict[str, str] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise click.BadParameter(f"{value!r} is not of the form NAME=PATH")
        if name in paths:
            raise click.BadParameter(f"two adapters are called {name!r}")
        paths[name] = path
    return paths


def plan_options(command: Decorated) -> Decorated:
    """Add the options that decide a plan, named as the arguments of `loadmaster.plan`."""
    options = (
        click.option("--tp", "tensor_parallel", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
                     help="Ranks to split the model over."),
        click.option("--dtype", type=click.Choice(DTYPES), default="auto", show_default=True,
                     help="Type of the parameters; auto keeps what the tensors have."),
        click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
                     help="Where the ranks compute."),
        click.option("--read-mode", type=click.Choice(get_args(ReadMode)), default="auto", show_default=True,
                     help="How bytes leave the files."),
        click.option("--equal-ranks", is_flag=True, help="Refuse a split whose ranks differ in size."),
        click.option("--kernel", default="auto", show_default=True, metavar="NAME",
                     help="What multiplies with quantised matrices; auto takes the best for each."),
        click.option("--adapter", "adapters", multiple=True, metavar="NAME=PATH", callback=_adapters,
                     help="Load an adapter under a name. Repeatable."),
        click.option("--adapter-mode", type=click.Choice(get_args(AdapterMode)), default="live", show_default=True,
                     help="Choose adapters per call, or merge one into the weights."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command
