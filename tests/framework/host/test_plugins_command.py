from __future__ import annotations

import json
from typing import Any

import pytest

from fake_distribution import FakeSite, toy_format
from loadmaster.cli.program import run


@pytest.fixture
def installed(site: FakeSite) -> FakeSite:
    site.install("acme-formats", "1.2", {"acme": "acme_toy"}, {"acme_toy": toy_format()})
    site.install("broken-plugin", "0.1", {"broken": "broken_module"}, {"broken_module": "import a_module_that_is_not_there"})
    return site


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def test_the_list_shows_origin_status_and_hooks_or_reason(installed: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "list"]) == 0
    rows = {line.split()[0]: line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()}
    assert rows["plugin"] == ["plugin", "distribution", "version", "status", "hooks, or reason"]
    assert rows["acme"] == ["acme", "acme-formats", "1.2", "active", "formats"]
    assert rows["broken"][:4] == ["broken", "broken-plugin", "0.1", "failed"]
    assert "a_module_that_is_not_there" in rows["broken"][4]
    assert rows["transforms"][1] == "loadmaster"


def test_the_list_as_json_is_one_document(installed: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "list", "--json"]) == 0
    content = document(capsys)
    assert content["ok"] is True
    acme = next(plugin for plugin in content["plugins"] if plugin["name"] == "acme")
    assert acme["hooks"] == ["loadmaster_formats"]
    assert acme["module"] == str(installed.folder / "acme_toy.py")
    assert any("broken (broken-plugin 0.1), failed" in line for line in content["notices"])


@pytest.mark.parametrize(
    ("options", "statuses"),
    [
        (["-p", "no:acme"], {"acme": "disabled", "broken": "failed"}),
        (["--no-plugins"], {"acme": "disabled", "broken": "disabled"}),
        (["--no-plugins", "-p", "acme"], {"acme": "active", "broken": "disabled"}),
        (["-p", "broken"], {"acme": "active", "broken": "failed"}),
    ],
)
def test_the_list_follows_the_choices(
    installed: FakeSite, capsys: pytest.CaptureFixture[str], options: list[str], statuses: dict[str, str]
) -> None:
    assert run(["plugins", "list", "--json", *options]) == 0
    found = {plugin["name"]: plugin["status"] for plugin in document(capsys)["plugins"]}
    assert {name: found[name] for name in statuses} == statuses


def test_the_environment_is_respected(
    installed: FakeSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_PLUGINS", "acmee")
    assert run(["plugins", "list"]) == 0
    captured = capsys.readouterr()
    assert "not among the allowed plugins" in captured.out
    assert captured.err == "no installed plugin or distribution is called 'acmee'; did you mean 'acme'?\n"


def test_show_prints_every_field(installed: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "show", "broken"]) == 0
    text = capsys.readouterr().out
    assert "broken-plugin 0.1" in text
    assert "Traceback" in text
    assert "broken_module.py" in text
    assert run(["plugins", "show", "acme", "--json"]) == 0
    (plugin,) = document(capsys)["plugins"]
    assert (plugin["name"], plugin["value"], plugin["version"]) == ("acme", "acme_toy", "1.2")


def test_an_unknown_plugin_is_a_usage_error_with_a_suggestion(installed: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "show", "acmee"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "did you mean 'acme'?" in captured.err


def test_two_plugins_of_one_name_are_a_plugin_failure(installed: FakeSite, capsys: pytest.CaptureFixture[str]) -> None:
    installed.install("rival-formats", "2.1", {"acme": "rival_toy"}, {"rival_toy": toy_format()})
    assert run(["plugins", "list", "--json"]) == 4
    error = document(capsys)["error"]
    assert error["code"] == "LM-PLUGIN-CONFLICT"
    assert error["why"] == "'acme' provided by acme-formats 1.2, rival-formats 2.1"
