"""The page about adapters: its commands and its example work, and its table of refusals is complete."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import loadmaster_engine
import loadmaster_plugins
from loadmaster.cli.program import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
DATA = ROOT / "tests" / "data"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^\$ loadmaster (.+)$", PAGE, re.MULTILINE)


def _filled(text: str) -> str:
    return re.sub(r"\bADAPTER\b", str(DATA / "lora-r8-attn"), re.sub(r"\bMODEL\b", str(DATA / "base"), text))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    code = run(shlex.split(_filled(command)))
    out, err = capfd.readouterr()
    assert code == 0, err
    assert "r 8" in out


@pytest.mark.parametrize(("number", "end"), [(0, "(3, 512)"), (1, "True")])
def test_an_example_works(number: int, end: str, capfd: pytest.CaptureFixture[str]) -> None:
    example = EXAMPLES[number]
    exec(compile(_filled(example), "docs/adapters.md", "exec"), {"__name__": "__main__"})
    assert capfd.readouterr().out.rstrip().endswith(end)


def test_all_examples_are_tried() -> None:
    assert len(EXAMPLES) == 2


def test_the_page_lists_every_refusal() -> None:
    folders = [Path(loadmaster_plugins.__path__[0]), Path(loadmaster_engine.__path__[0]), ROOT / "framework"]
    source = "".join(file.read_text(encoding="utf-8") for folder in folders for file in folder.rglob("*.py"))
    notes = {"LM-ADAPTER-PREFIX", "LM-ADAPTER-SCALES", "LM-ADAPTER-PATTERN", "LM-ADAPTER-FILE"}
    codes = set(re.findall(r'"(LM-(?:USAGE-)?ADAPTER[A-Z-]*)"', source))
    assert set(re.findall(r"^\| (`LM-.+?) \|", PAGE, re.MULTILINE))
    assert set(re.findall(r"`(LM-(?:USAGE-)?ADAPTER[A-Z-]*)`", PAGE)) == codes - notes
