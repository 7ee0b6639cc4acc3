from __future__ import annotations

import pytest

from loadmaster.host import PluginSelection
from loadmaster_hookspecs import UsageError


def test_without_variables_every_plugin_takes_part() -> None:
    selection = PluginSelection.from_environment({})
    assert selection == PluginSelection(allowed=None, blocked=(), required=())
    assert selection.exclusion("acme", "acme-formats") == ""


def test_lists_are_split_at_commas_and_blanks_do_not_count() -> None:
    variables = {"LOADMASTER_PLUGINS": " acme , toy,", "LOADMASTER_DISABLE_PLUGINS": "slow"}
    assert PluginSelection.from_environment(variables) == PluginSelection(allowed=("acme", "toy"), blocked=("slow",))


def test_an_empty_allow_list_leaves_first_party_plugins_only() -> None:
    selection = PluginSelection.from_environment({"LOADMASTER_PLUGINS": ""})
    assert "LOADMASTER_PLUGINS" in selection.exclusion("acme", "acme-formats")
    assert selection.exclusion("transforms", "loadmaster") == ""


def test_this_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_PLUGINS", "acme")
    monkeypatch.setenv("LOADMASTER_DISABLE_PLUGINS", "transforms")
    assert PluginSelection.from_environment() == PluginSelection(allowed=("acme",), blocked=("transforms",))


@pytest.mark.parametrize("name", ["acme", "acme-formats", "Acme_Formats", "acme.formats"])
def test_plugins_are_named_by_entry_point_or_distribution(name: str) -> None:
    assert PluginSelection(blocked=(name,)).exclusion("acme", "acme-formats") != ""
    assert PluginSelection(allowed=(name,)).exclusion("acme", "acme-formats") == ""
    assert PluginSelection(allowed=(name,)).exclusion("other", "other-formats") != ""


def test_blocking_wins_over_allowing_and_reaches_first_party_plugins() -> None:
    selection = PluginSelection(allowed=("acme",), blocked=("acme", "transforms"))
    assert "-p no:acme" in selection.exclusion("acme", "acme-formats")
    assert "-p no:transforms" in selection.exclusion("transforms", "loadmaster")


def test_the_command_line_wins_over_the_environment() -> None:
    environment = PluginSelection(allowed=("toy",), blocked=("acme", "slow"))
    assert environment.choose(["acme", "no:toy"]) == PluginSelection(
        allowed=("toy", "acme"), blocked=("slow", "toy"), required=("acme",)
    )


def test_no_plugins_keeps_what_is_demanded_by_name() -> None:
    environment = PluginSelection(allowed=("toy",))
    assert environment.choose(no_plugins=True).allowed == ()
    assert environment.choose(["acme"], no_plugins=True).allowed == ("acme",)
    assert PluginSelection().choose(["acme"]).allowed is None


@pytest.mark.parametrize("names", [["acme", "no:acme"], ["Acme_x", "no:acme-x"], [""], ["no:"]])
def test_contradictions_and_empty_names_are_usage_errors(names: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        PluginSelection().choose(names)
    assert caught.value.code == "LM-PLUGIN-CHOICE"
    assert caught.value.exit_code == 2


def test_unmatched_names_are_those_that_nothing_is_called() -> None:
    selection = PluginSelection(allowed=("acme", "tooy"), blocked=("Slow_Thing", "gone"))
    assert selection.unmatched(["acme", "toy", "slow-thing"]) == ("tooy", "gone")
