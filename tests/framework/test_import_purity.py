"""Importing loadmaster and asking for help is cheap and changes nothing in the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "safetensors", "numpy", "rich", "starlette", "uvicorn", "prometheus_client")
HELP_SECONDS = 0.150


def _python(code: str) -> str:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "import loadmaster",
        "import loadmaster.cli.program",
        "import loadmaster_hookspecs.specs",
        "from loadmaster.cli.program import run; run(['--help'])",
        "from loadmaster.cli.program import run; run(['run', '--help'])",
        "from loadmaster.cli.program import run; run(['serve', '--help'])",
        "from loadmaster.cli.program import run; run(['tune', '--help'])",
        "from loadmaster.cli.program import run; run(['plan', '--tp', '0'])",
    ],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    code = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert _python(code).splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [["env"], ["plugins", "list"]])
def test_commands_of_the_host_import_no_torch(command: list[str]) -> None:
    code = f"import sys; from loadmaster.cli.program import run; run({command!r}); print('torch' in sys.modules)"
    assert _python(code).splitlines()[-1] == "False"


def test_the_server_imports_no_torch() -> None:
    assert _python("import sys, loadmaster.serving.http.launch; print('torch' in sys.modules)") == "False\n"


def test_importing_has_no_side_effects() -> None:
    code = """
import logging, os, signal, sys, threading, warnings

def state():
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    filters = [entry[:3] for entry in warnings.filters]
    logs = list(logging.root.handlers), logging.root.level
    return dict(os.environ), threading.active_count(), handlers, logs, filters, sys.excepthook, os.getcwd()

before = state()
import loadmaster, loadmaster.cli.program, loadmaster_engine, loadmaster_hookspecs.specs
after = state()
print([index for index, (was, is_) in enumerate(zip(before, after)) if was != is_])
"""
    assert _python(code) == "[]\n"


def test_help_takes_less_than_the_promised_time() -> None:
    # Processor time of the fastest of several runs: other processes on a busy machine cannot make it look slower.
    fastest = min(_cpu_seconds_of_help() for _ in range(8))
    assert fastest < HELP_SECONDS


def _cpu_seconds_of_help() -> float:
    before = os.times()
    subprocess.run([sys.executable, "-m", "loadmaster.cli", "--help"], capture_output=True, timeout=60, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
