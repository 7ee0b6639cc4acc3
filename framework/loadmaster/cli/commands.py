"""Finds commands by name: our own without importing them, those of plugins only when nothing else has the name."""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

import click

from loadmaster.cli.session import Session
from loadmaster.cli.third_party import third_party_distributions


class OwnCommand(NamedTuple):
    """A command of loadmaster: `value` is `module:attribute`, `summary` its line in the list of commands."""

    value: str
    summary: str


OWN: Final[Mapping[str, OwnCommand]] = {
    "inspect": OwnCommand("loadmaster.cli.inspect:inspect", "Show what a checkpoint holds, from headers alone."),
    "plan": OwnCommand("loadmaster.cli.plan:plan", "Show what every rank would read, without reading it."),
    "run": OwnCommand("loadmaster.cli.run:run", "Load a model and let it answer prompts."),
    "serve": OwnCommand("loadmaster.cli.serve:serve", "Load a model and serve it over HTTP."),
    "tune": OwnCommand("loadmaster.cli.tune:tune", "Find out how many requests to serve at once, and keep it."),
    "plugins": OwnCommand("loadmaster.cli.plugins:plugins", "Show which plugins take part, and why others do not."),
    "env": OwnCommand("loadmaster.cli.env:env", "Show versions and machine, for a bug report."),
}
"""Commands in the order of the help text."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return our own commands, then those of plugins where any are installed."""
        return [*OWN, *_foreign(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by name, or None. Plugins are asked only for names that are not ours."""
        if cmd_name in OWN:
            return cast(click.Command, pkgutil.resolve_name(OWN[cmd_name].value))
        return _foreign(ctx).get(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` begin with. Raises UsageError that suggests the closest name."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            return name, command, args[1:]
        close = difflib.get_close_matches(name, OWN, n=1)
        raise click.UsageError(f"no such command {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing ours. A plugin that fails now does not take the help away."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, own.summary) for name, own in OWN.items()])
        if not third_party_distributions():
            return
        from loadmaster_hookspecs import LoadmasterError

        try:
            foreign = [(name, command.get_short_help_str(90)) for name, command in _foreign(ctx).items()]
        except LoadmasterError as error:
            foreign = [("-", f"not known: {error.report.summary}; see `loadmaster plugins list`")]
        if foreign:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(foreign)


def _foreign(context: click.Context) -> Mapping[str, click.Command]:
    """Return the commands that plugins add, by name; costs nothing where no other distribution has plugins."""
    if not third_party_distributions():
        return {}
    from loadmaster.host import PluginHost

    commands = PluginHost(context.ensure_object(Session).selection).commands()
    return {name: commands[name] for name in sorted(commands)}
