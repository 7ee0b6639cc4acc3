"""`loadmaster serve`: load a model and answer requests of the OpenAI API."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any, Final

import click

from loadmaster.cli.options import model_argument, plan_options
from loadmaster.cli.session import Session
from loadmaster.cli.session_options import session_options
from loadmaster_hookspecs import UsageError

EXTRA: Final = ("starlette", "uvicorn", "prometheus_client")
"""The modules that `loadmaster[serve]` brings in."""

KEY_VARIABLE: Final = "LOADMASTER_API_KEY"


_UNITS: Final = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


ENGINE_SETTINGS: Final = ("kv_bytes", "max_model_len", "max_running", "max_batch_tokens", "prefix_cache")
"""The options that are settings of the serving engine; what is not given is left to it."""


class ByteCount(click.ParamType[int]):
    """A number of bytes, with a unit or without: `512MiB`, `2GB`, `1073741824`."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes. Fails for anything that is no number of bytes."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", str(value).strip())
        unit = _UNITS.get(found[2].lower()) if found else None
        if found is None or unit is None or float(found[1]) * unit < 1:
            self.fail(f"{value!r} is not a number of bytes; write 512MiB, 2GB or 1073741824", param, ctx)
        return int(float(found[1]) * unit)


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
@click.option(
    "--kv-bytes", type=ByteCount(), metavar="BYTES", help="Memory for keys and values, all ranks.  [default: what is left]"
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=2),
    metavar="N",
    help="Longest context in tokens.  [default: what fits]",
)
@click.option("--max-running", type=click.IntRange(min=1), metavar="N", help="Requests in a batch.  [default: the engine's]")
@click.option(
    "--max-batch-tokens", type=click.IntRange(min=1), metavar="N", help="New tokens of a step.  [default: the engine's]"
)
@click.option(
    "--prefix-cache/--no-prefix-cache", default=None, help="Reuse what equal beginnings have computed.  [default: the engine's]"
)
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
    help="Its name in requests. Repeatable.  [default: the folder]",
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
    drain_seconds: float,
    **settings: Any,
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
    with bind(host, port) as listening:
        private = is_loopback(listening)
        if not api_key and not private:
            click.echo(f"notice    everybody who reaches {host} may use this server: set {KEY_VARIABLE}", err=True)
        defaults = launch.model_defaults(model, selection)
        wanted = {name: settings.pop(name) for name in ENGINE_SETTINGS}
        wanted = {name: value for name, value in wanted.items() if value is not None}
        with open_display(sys.stderr, quiet=session.quiet) as display:
            loaded = launch.make_engine(model, wanted, selection=selection, on_event=display.handle, **settings)
            display.finish(loaded.report)
        served = names or (Path(model).resolve().name,)
        told = ServerSettings(
            models=served,
            defaults=defaults,
            key=api_key,
            hosts=(*LOOPBACK, host.lower(), listening.getsockname()[0]) if private and not api_key else (),
            drain_seconds=drain_seconds,
            report=loaded.report,
        )
        line = f"serving   {', '.join(served)} at {base_url(listening)}"
        launch.run_server(loaded.engine, told, listening, lambda: click.echo(line, err=True))


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
