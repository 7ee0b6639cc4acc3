"""What docs/serving-http.md tells is so: its commands are understood, its example works, its lists are complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from fake_adapters import shift_of, write_fake_adapter
from fake_serving import expected_text
from live_server import Live, live_server
from loadmaster.cli.plan import plan
from loadmaster.cli.serve import serve
from loadmaster.cli.session import Session
from loadmaster.serving.http.metrics import ROUTES
from loadmaster.serving.http.requests import ChatRequest, CompletionRequest, LoadAdapterRequest, UnloadAdapterRequest
from loadmaster.serving.http.settings import ServerSettings
from loadmaster.serving.settings import EngineSettings

PAGE = (Path(__file__).parents[2] / "docs" / "serving-http.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (loadmaster .+)$", PAGE, re.MULTILINE)


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ADAPTERS").mkdir()
    monkeypatch.chdir(tmp_path)
    program, name, *arguments = shlex.split(command)
    assert (program, name) == ("loadmaster", "serve")
    with serve.make_context("serve", arguments, obj=Session()) as context:
        assert context.params["model"] == "MODEL"


def test_the_example_works(capsys: pytest.CaptureFixture[str]) -> None:
    with live_server() as live:
        run_example(0, live)
    prompt = "user=What is the capital of France?\n"
    assert capsys.readouterr().out == expected_text([ord(character) for character in prompt], 16)


def test_the_example_with_an_adapter_works(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_fake_adapter(tmp_path / "formal-v2", b"formal")
    with live_server(adapter_folder=str(tmp_path)) as live:
        run_example(1, live)
        assert live.engine.adapters.list() == ()
    text = expected_text([ord(character) for character in "Dear customer,"], 16, shift=shift_of(b"formal"))
    assert capsys.readouterr().out == f"2/2 pairs 6\n{text}\n"


def run_example(number: int, live: Live) -> None:
    """Run one of the page's examples against a server."""
    example = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[number]
    namespace: dict[str, Any] = {}
    exec(compile(example.replace("http://127.0.0.1:8000/v1", live.url), "serving-http.md", "exec"), namespace)
    namespace["client"].close()


@pytest.mark.parametrize("record", [ChatRequest, CompletionRequest, LoadAdapterRequest, UnloadAdapterRequest])
def test_every_field_is_told(record: type[msgspec.Struct]) -> None:
    content = {"messages", "prompt"}
    assert [name for name in record.__struct_fields__ if f"`{name}" not in PAGE and name not in content] == []


def test_every_option_and_path_is_told() -> None:
    own = {text for parameter in serve.params if isinstance(parameter, click.Option) for text in parameter.opts}
    own -= {text for parameter in plan.params if isinstance(parameter, click.Option) for text in parameter.opts} - {"--adapter"}
    own -= {"--prefix-cache"}  # its other side is what is told
    assert len(own) > 10
    assert [option for option in own if f"`{option}`" not in PAGE] == []
    assert [path for path in ROUTES if f"{path}`" not in PAGE] == []


def test_the_limits_are_those_of_the_settings() -> None:
    settings = ServerSettings(models=("x",))
    assert f"{settings.max_body_bytes >> 20} MiB, {settings.body_seconds:g} s to arrive" in PAGE
    assert f"`n` | {settings.max_choices} |" in PAGE
    assert f"`--max-waiting`, {EngineSettings().max_waiting} by default" in PAGE
    assert f"does not take | {settings.send_seconds:g} s" in PAGE
    assert f"`--drain-seconds`, {settings.drain_seconds:g} by default" in PAGE
