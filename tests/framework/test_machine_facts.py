from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadmaster.display.machine_table import render_machine
from loadmaster.host import PluginInfo
from loadmaster.machine import chosen, describe_machine, loadmaster_variables, memory_limit


def test_the_facts_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_PLUGINS", "acme")
    machine = describe_machine()
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.memory_total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.packages["torch"] != "not installed"
    assert machine.variables["LOADMASTER_PLUGINS"] == "acme"


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "1073741824\n"}, 1 << 30),
        ({"memory.max": "max\n"}, None),
        ({"memory/memory.limit_in_bytes": "536870912\n"}, 1 << 29),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({}, None),
    ],
)
def test_the_limit_of_the_container(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limit(tmp_path) == limit


def test_the_chosen_setting() -> None:
    assert chosen("always [madvise] never\n") == "madvise"
    assert chosen("") == "unknown"


def test_only_our_variables_are_told() -> None:
    assert loadmaster_variables({"LOADMASTER_B": "2", "SECRET": "x", "LOADMASTER_A": "1"}) == {
        "LOADMASTER_A": "1",
        "LOADMASTER_B": "2",
    }


def test_a_key_is_not_told() -> None:
    assert loadmaster_variables({"LOADMASTER_API_KEY": "s3cret"}) == {"LOADMASTER_API_KEY": "(set)"}


def test_the_table_names_plugins_and_their_problems() -> None:
    broken = PluginInfo(name="acme", distribution="acme-formats", version="1.0", status="failed", reason="ImportError: no")
    text = render_machine(describe_machine(), [broken])
    assert "plugins      acme (acme-formats 1.0) failed: ImportError: no\n" in text
    assert render_machine(describe_machine(), [], "two plugins called x").count("two plugins called x") == 1
