from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fake_distribution import FakeSite, toy_format
from loadmaster.host import PluginHost, PluginInfo, PluginSelection
from loadmaster_hookspecs import PluginError

ALONE = PluginSelection(blocked=("loadmaster",))


def found(name: str, selection: PluginSelection = ALONE) -> PluginInfo:
    (info,) = (info for info in PluginHost(selection).plugins if info.name == name)
    return info


def hook_module(body: str) -> str:
    return f"from loadmaster_hookspecs import hookimpl\n{body}"


def test_an_active_plugin_is_described(site: FakeSite) -> None:
    site.install("acme-formats", "1.2", {"acme": "acme_toy"}, {"acme_toy": toy_format()})
    assert found("acme") == PluginInfo(
        name="acme",
        distribution="acme-formats",
        version="1.2",
        value="acme_toy",
        module=str(site.folder / "acme_toy.py"),
        status="active",
        hooks=("loadmaster_formats",),
    )


def test_a_plugin_may_be_an_object_in_a_module(site: FakeSite) -> None:
    body = "class Plugin:\n    @hookimpl\n    def loadmaster_event(self, event): ...\nplugin = Plugin()\n"
    site.install("acme-watch", "1.0", {"watch": "acme_watch:plugin"}, {"acme_watch": hook_module(body)})
    info = found("watch")
    assert (info.status, info.hooks) == ("active", ("loadmaster_event",))
    assert info.module == str(site.folder / "acme_watch.py")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    ],
)
def test_a_broken_import_is_recorded_and_harms_no_other(site: FakeSite, text: str, reason: str) -> None:
    site.install("broken-plugin", "0.1", {"broken": "broken_module"}, {"broken_module": text})
    site.install("acme-formats", "1.2", {"acme": "acme_toy"}, {"acme_toy": toy_format()})
    host = PluginHost(ALONE)
    (info,) = (info for info in host.plugins if info.name == "broken")
    assert info.status == "failed"
    assert reason in info.reason
    assert "broken_module.py" in info.traceback
    assert "importlib" not in info.traceback
    assert host.format("toy").name == "toy"
    assert any("broken (broken-plugin 0.1), failed" in line for line in host.notices)


def test_a_module_that_does_not_exist_is_a_failure(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_nowhere"})
    assert found("acme").status == "failed"
    assert "acme_nowhere" in found("acme").reason


def test_a_misspelt_hook_is_a_failure_with_the_likely_name(site: FakeSite) -> None:
    body = "@hookimpl\ndef loadmaster_fromats():\n    return []\n"
    site.install("acme-formats", "1.0", {"acme": "acme_typo"}, {"acme_typo": hook_module(body)})
    info = found("acme")
    assert info.status == "failed"
    assert info.reason == "unknown hook 'loadmaster_fromats'; did you mean 'loadmaster_formats'?"


def test_an_optional_unknown_hook_is_accepted(site: FakeSite) -> None:
    body = (
        "@hookimpl(optionalhook=True)\ndef loadmaster_of_tomorrow():\n    return []\n"
        "@hookimpl\ndef loadmaster_event(event): ...\n"
    )
    site.install("acme-new", "1.0", {"acme": "acme_new"}, {"acme_new": hook_module(body)})
    assert (found("acme").status, found("acme").hooks) == ("active", ("loadmaster_event",))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def loadmaster_formats():\n    return []\n", "loadmaster_formats is not marked with @hookimpl"),
        ("@hookimpl\ndef loadmaster_formats(source):\n    return []\n", "'source'"),
        ("@hookimpl\ndef loadmaster_event(event): ...\n@hookimpl\ndef loadmaster_formats(where):\n    return []\n", "'where'"),
        ("@hookimpl(wrapper=True)\ndef loadmaster_formats():\n    return (yield)\n", "hook wrapper"),
        ("@hookimpl(hookwrapper=True)\ndef loadmaster_formats():\n    yield\n", "hook wrapper"),
    ],
)
def test_an_unusable_implementation_is_not_active(site: FakeSite, body: str, reason: str) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_wrong"}, {"acme_wrong": hook_module(body)})
    assert found("acme").status == "failed"
    assert reason in found("acme").reason
    assert PluginHost(ALONE).formats() == {}


def test_a_class_is_refused(site: FakeSite) -> None:
    body = "class Plugin:\n    @hookimpl\n    def loadmaster_event(self, event): ...\n"
    site.install("acme-watch", "1.0", {"watch": "acme_class:Plugin"}, {"acme_class": hook_module(body)})
    assert found("watch").status == "failed"
    assert found("watch").reason == "Plugin is a class; a plugin is a module or an instance"


@pytest.mark.parametrize(("version", "status"), [(1, "active"), (2, "incompatible"), (0, "incompatible")])
def test_a_plugin_for_another_contract_is_incompatible(site: FakeSite, version: int, status: str) -> None:
    body = f"loadmaster_api_version = {version}\n@hookimpl\ndef loadmaster_event(event): ...\n"
    site.install("acme-watch", "1.0", {"watch": "acme_versioned"}, {"acme_versioned": hook_module(body)})
    info = found("watch")
    assert info.status == status
    if status == "incompatible":
        assert info.reason == f"written for contract version {version}; this loadmaster has version 1"


def test_a_plugin_without_hooks_is_pointed_out(site: FakeSite) -> None:
    site.install("acme-empty", "1.0", {"empty": "acme_empty"}, {"acme_empty": "x = 1\n"})
    info = found("empty")
    assert (info.status, info.hooks) == ("active", ())
    assert "implements no hook" in info.reason


def test_two_names_for_one_module_are_one_plugin(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"one": "acme_toy", "two": "acme_toy"}, {"acme_toy": toy_format()})
    assert found("one").status == "active"
    assert (found("two").status, found("two").reason) == ("failed", "it is the same object as plugin 'one'")


@pytest.mark.parametrize("blocked", ["acme", "acme-formats"])
def test_a_blocked_plugin_is_listed_and_not_imported(site: FakeSite, blocked: str) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_unwanted"}, {"acme_unwanted": "raise RuntimeError"})
    info = found("acme", PluginSelection(blocked=("loadmaster", blocked)))
    assert info.status == "disabled"
    assert blocked in info.reason
    assert "acme_unwanted" not in sys.modules


def test_an_allow_list_admits_only_what_it_names(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}, {"acme_toy": toy_format()})
    site.install("other-formats", "1.0", {"other": "other_toy"}, {"other_toy": toy_format("other")})
    host = PluginHost(PluginSelection(allowed=("other-formats",), blocked=("loadmaster",)))
    assert {info.name: info.status for info in host.plugins if info.distribution != "loadmaster"} == {
        "acme": "disabled",
        "other": "active",
    }
    assert list(host.formats()) == ["other"]


def test_an_allow_list_keeps_first_party_plugins() -> None:
    infos = PluginHost(PluginSelection(allowed=())).plugins
    first_party = [info for info in infos if info.distribution == "loadmaster"]
    assert first_party
    assert all(info.status != "disabled" for info in first_party)


def test_a_first_party_plugin_can_be_blocked_by_name() -> None:
    infos = PluginHost(PluginSelection(allowed=(), blocked=("transforms",))).plugins
    assert [info.name for info in infos if info.status == "disabled" and info.distribution == "loadmaster"] == ["transforms"]


def test_one_name_in_two_distributions_is_an_error_that_names_both(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"toy": "acme_toy"}, {"acme_toy": toy_format()})
    site.install("rival-formats", "2.1", {"toy": "rival_toy"}, {"rival_toy": toy_format()})
    with pytest.raises(PluginError) as caught:
        PluginHost(ALONE)
    error = caught.value
    assert error.code == "LM-PLUGIN-CONFLICT"
    assert error.exit_code == 4
    assert error.report.why == "'toy' provided by acme-formats 1.0, rival-formats 2.1"
    assert error.hints == ("choose one: -p no:acme-formats", "choose one: -p no:rival-formats")
    assert "acme_toy" not in sys.modules


def test_blocking_one_distribution_settles_the_conflict(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"toy": "acme_toy"}, {"acme_toy": toy_format()})
    site.install("rival-formats", "2.1", {"toy": "rival_toy"}, {"rival_toy": toy_format()})
    host = PluginHost(PluginSelection(blocked=("loadmaster", "acme-formats")))
    assert [(info.distribution, info.status) for info in host.plugins if info.name == "toy"] == [
        ("acme-formats", "disabled"),
        ("rival-formats", "active"),
    ]


def test_a_third_party_plugin_cannot_take_a_first_party_name(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"transforms": "acme_toy"}, {"acme_toy": toy_format()})
    with pytest.raises(PluginError) as caught:
        PluginHost(PluginSelection())
    assert "loadmaster " in caught.value.report.why
    assert caught.value.hints == ("choose one: -p no:acme-formats",)


def test_a_distribution_that_two_paths_lead_to_counts_once(
    site: FakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}, {"acme_toy": toy_format()})
    FakeSite(tmp_path / "again").install("Acme_Formats", "0.9", {"acme": "acme_toy"})
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "again"), str(site.folder)])
    assert (found("acme").status, found("acme").version) == ("active", "1.0")


def test_unreadable_entry_points_are_reported(site: FakeSite) -> None:
    metadata = site.install("garbled-plugin", "0.3", {"x": "y"})
    (metadata / "entry_points.txt").write_text("[loadmaster]\nno equals sign\n", encoding="utf-8")
    binary = site.install("binary-plugin", "0.3", {"x": "y"})
    (binary / "entry_points.txt").write_bytes(b"\xff\xfe[loadmaster]")
    info = found("garbled-plugin")
    assert (info.status, info.version) == ("failed", "0.3")
    assert "entry_points.txt" in info.reason
    assert not any(info.distribution == "binary-plugin" for info in PluginHost(ALONE).plugins)


def test_an_empty_group_is_no_plugin(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {})
    assert not any(info.distribution == "acme-formats" for info in PluginHost(ALONE).plugins)


def test_the_order_does_not_depend_on_the_path(site: FakeSite) -> None:
    site.install("zeta-plugins", "1.0", {"b": "zeta_b", "a": "zeta_a"})
    site.install("alpha-plugins", "1.0", {"z": "alpha_z"})
    names = [(info.distribution, info.name) for info in PluginHost(PluginSelection()).plugins]
    third = names.index(("alpha-plugins", "z"))
    assert names[third:] == [("alpha-plugins", "z"), ("zeta-plugins", "a"), ("zeta-plugins", "b")]
    assert {distribution for distribution, _ in names[:third]} == {"loadmaster"}


def test_a_demanded_plugin_must_be_installed_and_active(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_bad"}, {"acme_bad": "import a_module_that_is_not_there"})
    with pytest.raises(PluginError) as failed:
        PluginHost(ALONE.choose(["acme"]))
    assert failed.value.code == "LM-PLUGIN-REQUIRED"
    assert "acme (acme-formats 1.0)" in failed.value.report.summary
    assert "a_module_that_is_not_there" in failed.value.report.why
    with pytest.raises(PluginError) as missing:
        PluginHost(ALONE.choose(["acmee"]))
    assert "did you mean 'acme'?" in missing.value.hints


def test_names_that_nothing_is_called_are_pointed_out(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}, {"acme_toy": toy_format()})
    host = PluginHost(PluginSelection(blocked=("loadmaster", "acmee")))
    assert host.notices == ("no installed plugin or distribution is called 'acmee'; did you mean 'acme'?",)
