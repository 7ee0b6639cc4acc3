from __future__ import annotations

import io
from collections.abc import Callable

import pytest

import loadmaster
from command_line import Invoke, Outcome
from fake_api import FakeEngine
from loadmaster.cli.program import run
from loadmaster.inspection import Inspection
from sample_plan import sample_plan


@pytest.fixture
def invoke(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Call the command line in this process, with `stdin` as its input (default: a terminal)."""

    def call(*arguments: str, stdin: str | None = None) -> Outcome:
        stream = io.StringIO(stdin or "")
        monkeypatch.setattr(stream, "isatty", lambda: stdin is None)
        monkeypatch.setattr("sys.stdin", stream)
        capfd.readouterr()
        code = run(arguments)
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture
def fake_api(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """Replace `loadmaster.inspect`, `plan` and `Engine`; returns the engines that were made."""
    FakeEngine.made = []
    monkeypatch.setattr(loadmaster, "inspect", lambda path, selection=None: _inspection(path), raising=False)
    monkeypatch.setattr(loadmaster, "plan", lambda path, **settings: loadmaster.Plan(sample_plan()), raising=False)
    monkeypatch.setattr(loadmaster, "Engine", FakeEngine, raising=False)
    return FakeEngine.made


@pytest.fixture
def failing_api(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `loadmaster.plan` raise the exception that is passed in."""

    def fail_with(error: BaseException) -> None:
        def plan(path: str, **settings: object) -> loadmaster.Plan:
            raise error

        monkeypatch.setattr(loadmaster, "plan", plan, raising=False)

    return fail_with


def _inspection(path: str) -> Inspection:
    return Inspection(
        source=path,
        format="hf-safetensors",
        fingerprint="f" * 64,
        files=(),
        tensors=0,
        parameters=0,
        bytes_total=0,
        bytes_by_dtype={},
        architecture="LlamaForCausalLM",
    )
