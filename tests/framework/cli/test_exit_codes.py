"""Every way a call can end has its exit code and says what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from command_line import Invoke
from fake_api import FakeEngine
from loadmaster_hookspecs import IntegrityError, PlanError, PluginError, ResourceError, UsageError, WorkerError

Fail = Callable[[BaseException], None]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WorkerError("LM-WORKER-DIED", "rank 1 was killed"), 1),
        (UsageError("LM-MODEL-ABSENT", "no such folder"), 2),
        (PlanError("LM-PLAN-HEADS", "heads do not fit"), 3),
        (PluginError("LM-PLUGIN-CONFLICT", "two plugins"), 4),
        (IntegrityError("LM-FILE-TRUNCATED", "file is cut"), 5),
        (ResourceError("LM-MEMORY", "does not fit"), 6),
        (MemoryError(), 6),
        (KeyboardInterrupt(), 130),
        (RuntimeError("surprise"), 1),
    ],
)
def test_the_kind_of_error_decides(invoke: Invoke, failing_api: Fail, error: BaseException, code: int) -> None:
    failing_api(error)
    outcome = invoke("plan", "/models/small")
    assert outcome.code == code
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")


def test_success_and_help_are_zero(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    assert invoke("plan", "/models/small").code == 0
    assert invoke("plan", "--help").code == 0
    assert invoke("--version").code == 0


def test_no_command_is_a_usage_error_that_shows_the_help(invoke: Invoke) -> None:
    outcome = invoke()
    assert outcome.code == 2
    assert outcome.out == ""
    assert "inspect" in outcome.err


def test_a_surprise_is_short_and_tells_how_to_see_more(invoke: Invoke, failing_api: Fail) -> None:
    failing_api(RuntimeError("surprise"))
    outcome = invoke("plan", "/models/small")
    assert outcome.err == (
        "error: RuntimeError: surprise  [LM-UNEXPECTED]\n  try      see where it happened: add --traceback\n"
    )


def test_a_traceback_is_shown_once_when_asked_for(invoke: Invoke, failing_api: Fail) -> None:
    failing_api(RuntimeError("surprise"))
    outcome = invoke("--traceback", "plan", "/models/small")
    assert outcome.err.count("Traceback (most recent call last)") == 1
    assert "add --traceback" not in outcome.err


def test_a_workers_traceback_waits_until_it_is_asked_for(invoke: Invoke, failing_api: Fail) -> None:
    error = WorkerError("LM-WORKER-FAILED", "rank 1: ValueError: boom-17", traceback="Traceback of rank 1\nValueError: boom-17")
    failing_api(error)
    short, full = invoke("plan", "/models/small"), invoke("plan", "/models/small", "--traceback")
    assert "boom-17" in short.err
    assert "Traceback of rank 1" not in short.err
    assert "Traceback of rank 1" in full.err


def test_a_surprise_suggests_to_leave_third_party_plugins_out(
    invoke: Invoke, failing_api: Fail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmaster.cli.failures.third_party_distributions", lambda: ("acme",))
    failing_api(RuntimeError("surprise"))
    assert "add --no-plugins" in invoke("plan", "/models/small").err
    assert "add --no-plugins" not in invoke("--no-plugins", "plan", "/models/small").err


def test_a_reader_that_goes_away_is_no_error_message() -> None:
    command = "import sys; sys.argv[1:] = ['env']; from loadmaster.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141


def test_the_installed_command_returns_the_code_to_the_shell() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "loadmaster.cli", "plan"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("error: Missing argument 'MODEL'")
