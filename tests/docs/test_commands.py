"""What the documentation tells people to type works: its commands and Python examples are run against a tiny model."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from loadmaster.cli.program import run
from runnable_model import write_runnable_model

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/index.md", "docs/architecture.md", "docs/quantization.md", "docs/serving.md")


class Block(NamedTuple):
    """A fenced block of a page, and the line it begins on."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def _blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


BLOCKS = [block for page in PAGES for block in _blocks(page)]
COMMANDS = [
    pytest.param(line[2:], id=f"{block}-{line[2:]}")
    for block in BLOCKS
    if block.language == "console"
    for line in block.text.splitlines()
]
EXAMPLES = [pytest.param(block, id=str(block)) for block in BLOCKS if block.language == "python"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runnable_model(tmp_path_factory.mktemp("docs") / "model")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works(
    command: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, *arguments = shlex.split(command)
    assert program == "loadmaster"
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = run([str(model) if argument == "MODEL" else argument for argument in arguments])
    out, err = capfd.readouterr()
    assert code == 0, err
    assert out.strip()
    # Redirected output of a load stays short and plain, and ends with a line per rank.
    assert len(err.splitlines()) < 30
    assert "\r" not in err
    ranks = arguments[arguments.index("--tp") + 1] if "--tp" in arguments else "1"
    assert len(re.findall(r"^loadmaster rank=\d+ bytes=\d+ ", err, re.MULTILINE)) == (
        int(ranks) if {"run", "tune"} & set(arguments) else 0
    )


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_works(example: Block, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = compile(example.text.replace('"MODEL"', repr(str(model))), str(example), "exec")
    exec(code, {"__name__": "__main__"})
    assert capfd.readouterr().out.strip()


def test_the_pages_have_commands_and_examples() -> None:
    assert len(COMMANDS) >= 8
    assert len(EXAMPLES) >= 2
