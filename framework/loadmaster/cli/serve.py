"""`loadmaster serve`: load a model and answer requests of the OpenAI API."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import click

from loadmaster.cli.options import model_argument, plan_options
from loadmaster.cli.serve_options import ENGINE_SETTINGS, engine_options
from loadmaster.cli.session import Session
from loadmaster.cli.session_options import session_options
from loadmaster_hookspecs import UsageError

EXTRA: Final = ("starlette", "uvicorn", "prometheus_client")
"""The modules that `loadmaster[serve]` brings in."""

KEY_VARIABLE: Final = "LOADMASTER_API_KEY"


def _checked_key(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    if value is None:
        return ""
    if not value or not all("!" <= character <= "~" for character in value):
        raise click.BadParameter("a key is printable ASCII without spaces, and not empty", context, parameter)
    return value


@click.command()
@model_argument
@plan_options
@click.option("--executor", metavar="inline|multiprocess", help="How ranks run.  [default: the engine's choice]")
@engine_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port to listen on; 0 takes a free one."
)
@click.option(
    "--api-key", metavar="KEY", envvar=KEY_VARIABLE, show_envvar=True, callback=_checked_key, help="Demand this bearer key."
)
@click.option(
    "--served-model-name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Its name in requests. Repeatable.  [default: that of the folder, or of a merged adapter]",
)
@click.option(
    "--adapter-folder",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Let clients load adapters from inside DIR, and unload any.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="What running requests get when the server is to stop.",
)
@session_options
@click.pass_obj
def serve(
    session: Session,
    /,
    model: str,
    host: str,
    port: int,
    api_key: str,
    names: tuple[str, ...],
    adapter_folder: str | None,
    drain_seconds: float,
    **options: Any,
) -> None:
    """Load MODEL and answer requests of the OpenAI API: completions, chats, /health and /metrics.

    SIGTERM and SIGINT let running requests end and refuse new ones; a second SIGINT stops at once. Everything is printed on
    standard error.
    """
    _require_extra()
    from loadmaster.display.progress import open_display
    from loadmaster.serving.http import launch
    from loadmaster.serving.http.host import LOOPBACK
    from loadmaster.serving.http.listening import base_url, bind, is_loopback
    from loadmaster.serving.http.settings import ServerSettings

    selection = session.selection
    served = _served_names(model, names, options["adapters"], options["adapter_mode"])
    with bind(host, port) as listening:
        private = is_loopback(listening)
        if not api_key and not private:
            click.echo(f"notice    everybody who reaches {host} may use this server: set {KEY_VARIABLE}", err=True)
        defaults = launch.model_defaults(model, selection)
        wanted = {name: options.pop(name) for name in ENGINE_SETTINGS}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        with open_display(sys.stderr, quiet=session.quiet) as display:
            loaded = launch.make_engine(model, wanted, selection=selection, on_event=display.handle, **options)
            display.finish(loaded.report)
        told = ServerSettings(
            models=served,
            defaults=defaults,
            key=api_key,
            hosts=(*LOOPBACK, host.lower(), listening.getsockname()[0]) if private and not api_key else (),
            drain_seconds=drain_seconds,
            report=loaded.report,
            adapter_folder=adapter_folder or "",
        )
        known = dict.fromkeys([*served, *(adapter.name for adapter in loaded.engine.adapters.list())])
        line = f"serving   {', '.join(known)} at {base_url(listening)}"
        launch.run_server(loaded.engine, told, listening, lambda: click.echo(line, err=True))


def _served_names(model: str, names: tuple[str, ...], adapters: Collection[str], mode: str) -> tuple[str, ...]:
    """Return what requests call the model.

    A merged adapter gives it its name: nobody who asks for the folder's name should get an adapter's answers. Raises UsageError
    LM-SERVE-NAME when an adapter is called like the model.
    """
    if mode == "merged" and adapters:
        return names or tuple(adapters)
    served = names or (Path(model).resolve().name,)
    taken = sorted({*served} & {*adapters})
    if taken:
        raise UsageError(
            "LM-SERVE-NAME",
            f"model and adapter are both called {taken[0]!r}",
            hints=("give the adapter another name", "name the model with --served-model-name"),
        )
    return served


def _require_extra() -> None:
    """Raise UsageError LM-SERVE-EXTRA when what the server is made of is not installed."""
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            "LM-SERVE-EXTRA",
            "the server is not installed",
            why=f"missing: {', '.join(missing)}",
            hints=("pip install 'loadmaster[serve]'",),
        )
