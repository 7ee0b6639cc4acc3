"""`loadmaster plugins`: which plugins take part, and why others do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from loadmaster.cli.options import json_option
from loadmaster.cli.session import Session
from loadmaster.cli.session_options import session_options

if TYPE_CHECKING:
    from loadmaster.host import PluginHost, PluginInfo, PluginSelection

_COLUMNS: Final = ("plugin", "distribution", "version", "status", "hooks, or reason")


@click.group()
def plugins() -> None:
    """Show which plugins take part, and why others do not."""


@plugins.command("list")
@json_option
@session_options
@click.pass_context
def list_plugins(context: click.Context) -> None:
    """List every installed plugin: where it comes from, its status, its hooks or the reason why it has none."""
    session = context.ensure_object(Session)
    selection = _without_demands(session.selection)
    host = _host(selection)
    if session.json:
        from loadmaster.cli.output import print_document

        print_document(plugins=host.plugins, notices=host.notices)
        return
    from loadmaster.host.standing import unknown_names

    for line in _aligned([_COLUMNS, *map(_row, host.plugins)]):
        click.echo(line)
    for line in unknown_names(selection, host.plugins):
        click.echo(line, err=True)


@plugins.command("show")
@click.argument("name", metavar="NAME")
@json_option
@session_options
@click.pass_context
def show_plugin(context: click.Context, name: str) -> None:
    """Show all that is known about the plugin NAME."""
    session = context.ensure_object(Session)
    found = _named(_host(_without_demands(session.selection)).plugins, name)
    if session.json:
        from loadmaster.cli.output import print_document

        print_document(plugins=found)
        return
    click.echo("\n\n".join(map(_details, found)))


def _host(selection: PluginSelection) -> PluginHost:
    from loadmaster.host import PluginHost

    return PluginHost(selection)


def _without_demands(selection: PluginSelection) -> PluginSelection:
    # A plugin that was demanded and is not active stops other commands; this one is there to show why.
    import msgspec

    return msgspec.structs.replace(selection, required=())


def _named(found: Sequence[PluginInfo], name: str) -> list[PluginInfo]:
    from loadmaster.host.environment import canonical
    from loadmaster.host.inspection import did_you_mean
    from loadmaster_hookspecs import UsageError

    same = [info for info in found if canonical(info.name) == canonical(name)]
    if not same:
        names = [info.name for info in found]
        raise UsageError(
            "LM-PLUGIN-UNKNOWN",
            f"no installed plugin is called {name!r}",
            why=f"installed: {', '.join(names) or 'none'}",
            hints=[hint for hint in (did_you_mean(name, names), "loadmaster plugins list shows all") if hint],
        )
    return same


def _row(info: PluginInfo) -> tuple[str, ...]:
    hooks = ", ".join(hook.removeprefix("loadmaster_") for hook in info.hooks)
    return info.name, info.distribution, info.version, info.status, info.reason or hooks


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _details(info: PluginInfo) -> str:
    fields = {
        "plugin": info.name,
        "distribution": f"{info.distribution} {info.version}",
        "status": info.status,
        "reason": info.reason,
        "imported as": info.value,
        "module": info.module,
        "hooks": ", ".join(info.hooks),
    }
    lines = _aligned([(name, value) for name, value in fields.items() if value])
    return "\n".join([*lines, *([info.traceback.rstrip()] if info.traceback else [])])
