"""The commands and options that people and scripts rely on. A change here is a change of the public interface."""

from __future__ import annotations

import click
import pytest

from loadmaster.cli.program import program

GLOBAL = {"-p", "--no-plugins", "-q", "--quiet", "-v", "--verbose", "--traceback"}
PLANNING = {"--tp", "--dtype", "--device", "--read-mode", "--equal-ranks", "--kernel", "--json", "--adapter", "--adapter-mode"}
SURFACE = {
    "inspect": (["models"], {"--json", "--compare", "--text", "--base"}),
    "plan": (["model"], PLANNING | {"-o", "--output"}),
    "run": (
        ["model", "prompts"],
        PLANNING | {"--executor", "--max-tokens", "--temperature", "--seed", "--chat", "--use", "--report"},
    ),
    "serve": (
        ["model"],
        (PLANNING - {"--json"})
        | {"--executor", "--kv-bytes", "--max-model-len", "--host", "--port", "--api-key", "--served-model-name"}
        | {"--max-running", "--max-waiting", "--max-batch-tokens", "--prefix-cache", "--drain-seconds"}
        | {"--adapter-folder", "--adapter-bytes", "--max-adapter-rank"},
    ),
    "tune": (
        ["model"],
        PLANNING
        | {
            "--executor",
            "--kv-bytes",
            "--max-batch-tokens",
            "--prompt-tokens",
            "--answer-tokens",
            "--limit",
            "--gain",
            "--seconds",
        },
    ),
    "env": ([], {"--json"}),
    "plugins list": ([], {"--json"}),
    "plugins show": (["name"], {"--json"}),
}


def _leaves(group: click.Group, prefix: str = "") -> dict[str, click.Command]:
    context = click.Context(group)
    found: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found |= _leaves(command, f"{prefix}{name} ") if isinstance(command, click.Group) else {prefix + name: command}
    return found


def _options(command: click.Command) -> set[str]:
    return {text for parameter in command.params if isinstance(parameter, click.Option) for text in parameter.opts}


def test_the_commands_are_exactly_these() -> None:
    assert set(_leaves(program)) == set(SURFACE)


@pytest.mark.parametrize("name", SURFACE)
def test_a_command_has_exactly_these_parameters(name: str) -> None:
    command = _leaves(program)[name]
    arguments, options = SURFACE[name]
    assert [parameter.name for parameter in command.params if isinstance(parameter, click.Argument)] == arguments
    assert _options(command) == options | GLOBAL


def test_the_program_has_exactly_these_options() -> None:
    assert _options(program) == GLOBAL | {"--version"}


def test_every_command_and_option_explains_itself() -> None:
    for name, command in _leaves(program).items():
        assert command.help, name
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, (name, option.opts)


def test_the_types_are_those_of_the_planner() -> None:
    from loadmaster.cli.options import DTYPES
    from loadmaster_engine.plan.element_types import CHOICES

    assert DTYPES == CHOICES


def test_the_summaries_in_the_list_belong_to_existing_commands() -> None:
    from loadmaster.cli.commands import OWN

    assert all(own.summary.endswith(".") and len(own.summary) < 60 for own in OWN.values())
