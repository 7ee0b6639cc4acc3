"""What docs/serving-http.md tells is so: its commands are understood, its example works, its lists are complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from fake_serving import expected_text
from live_server import live_server
from loadmaster.cli.serve import serve
from loadmaster.cli.session import Session
from loadmaster.serving.http.metrics import ROUTES
from loadmaster.serving.http.requests import ChatRequest, CompletionRequest
from loadmaster.serving.http.settings import ServerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "serving-http.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (loadmaster .+)$", PAGE, re.MULTILINE)


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command: str) -> None:
    program, name, *arguments = shlex.split(command)
    assert (program, name) == ("loadmaster", "serve")
    with serve.make_context("serve", arguments, obj=Session()) as context:
        assert context.params["model"] == "MODEL"


def test_the_example_works(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    namespace: dict[str, Any] = {}
    with live_server() as live:
        exec(compile(example.replace("http://127.0.0.1:8000/v1", live.url), "serving-http.md", "exec"), namespace)
        namespace["client"].close()
    prompt = "user=What is the capital of France?\n"
    assert capsys.readouterr().out == expected_text([ord(character) for character in prompt], 16)


@pytest.mark.parametrize("record", [ChatRequest, CompletionRequest])
def test_every_field_is_told(record: type[ChatRequest] | type[CompletionRequest]) -> None:
    content = {"messages", "prompt"}
    assert [name for name in record.__struct_fields__ if f"`{name}" not in PAGE and name not in content] == []


def test_every_option_and_path_is_told() -> None:
    own = {"--host", "--port", "--api-key", "--served-model-name", "--kv-bytes", "--max-model-len", "--drain-seconds"}
    options = {text for parameter in serve.params if isinstance(parameter, click.Option) for text in parameter.opts}
    assert own <= options
    assert [option for option in own if f"`{option}`" not in PAGE] == []
    assert [path for path in ROUTES if f"{path}`" not in PAGE] == []


def test_the_limits_are_those_of_the_settings() -> None:
    settings = ServerSettings(models=("x",))
    assert f"{settings.max_body_bytes >> 20} MiB, {settings.body_seconds:g} s to arrive" in PAGE
    assert f"`n` | {settings.max_choices} |" in PAGE
    assert f"does not take | {settings.send_seconds:g} s" in PAGE
    assert f"`--drain-seconds`, {settings.drain_seconds:g} by default" in PAGE
