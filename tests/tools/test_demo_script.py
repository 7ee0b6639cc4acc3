"""The demo script, with a stand-in for the command: it shows its steps and insists on the right answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Demo = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = Path(__file__).parents[2] / "tools" / "demo.sh"


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    """Run the demo with a `loadmaster` that notes its arguments and answers `answer`."""

    def run(answer: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        model = tmp_path / "cache" / "loadmaster" / "demo" / "SmolLM2-135M-Instruct"
        model.mkdir(parents=True)
        programs = tmp_path / "bin"
        programs.mkdir()
        (programs / "python").write_text(
            f'#!/bin/sh\ncase $1 in *demo_adapter.py) echo "adapter $2" >> {tmp_path}/calls && exit ;; esac\n'
            f'exec {sys.executable} "$@"\n'
        )
        (programs / "python").chmod(0o755)
        (programs / "loadmaster").write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" = run ] && echo "{answer}"\nexit {code}\n'
        )
        (programs / "loadmaster").chmod(0o755)
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
        return subprocess.run([SCRIPT], capture_output=True, text=True, timeout=60, check=False, env=environment)

    return run


def test_it_inspects_plans_and_runs(demo: Demo, tmp_path: Path) -> None:
    ended = demo("The capital of France is Paris.")
    assert ended.returncode == 0, ended.stderr
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    assert [call[0] for call in calls] == ["inspect", "plan", "run", "adapter"]
    assert calls[1][2:] == ["--tp", "2"]
    assert {"--executor", "multiprocess", "--chat"} <= set(calls[2])
    assert "Name the capital of France.\nThe capital of France is Paris.\n" in ended.stdout
    assert calls[3] == ["adapter", str(tmp_path / "cache" / "loadmaster" / "demo" / "SmolLM2-135M-Instruct")]


def test_a_wrong_answer_fails(demo: Demo) -> None:
    ended = demo("It is Lyon.")
    assert ended.returncode == 1
    assert "does not name Paris" in ended.stderr
    assert "adapter" not in ended.stdout


def test_a_command_that_fails_ends_it(demo: Demo) -> None:
    assert demo("Paris", code=5).returncode == 5


def test_only_quantised_demos_that_exist_can_be_asked_for(tmp_path: Path) -> None:
    ended = subprocess.run([SCRIPT, "gguf"], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "usage" in ended.stderr
