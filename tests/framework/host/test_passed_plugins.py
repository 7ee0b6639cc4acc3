from __future__ import annotations

import importlib
import types

import pytest

from fake_distribution import FakeSite, toy_format
from loadmaster.host import PluginHost, PluginSelection
from loadmaster_hookspecs import PluginError, hookimpl

ALONE = PluginSelection(blocked=("loadmaster",))

WATCHER = """
    from loadmaster_hookspecs import hookimpl

    class Watcher:
        @hookimpl
        def loadmaster_event(self, event): ...

    watcher = Watcher()
"""


class Watcher:
    @hookimpl
    def loadmaster_event(self, event: object) -> None: ...


def module(site: FakeSite, name: str, text: str) -> types.ModuleType:
    site.install("no-plugin", "1.0", {}, {name: text})
    return importlib.import_module(name)


def test_a_module_an_object_and_an_import_name_are_plugins(site: FakeSite) -> None:
    toy = module(site, "app_toy", toy_format())
    watch = module(site, "app_watch", WATCHER)
    module(site, "app_other", toy_format("other"))
    host = PluginHost(ALONE, [toy, watch.watcher, "app_other"])
    passed = [info for info in host.plugins if not info.distribution]
    assert [(info.name, info.value, info.status) for info in passed] == [
        ("app_toy", "app_toy", "active"),
        ("app_watch:watcher", "app_watch:watcher", "active"),
        ("app_other", "app_other", "active"),
    ]
    assert passed[1].module == str(site.folder / "app_watch.py")
    assert list(host.formats()) == ["other", "toy"]
    assert passed[0].label == "app_toy (passed by the caller)"


def test_the_record_names_passed_plugins(site: FakeSite) -> None:
    watch = module(site, "app_watch", WATCHER)
    module(site, "app_toy", toy_format())
    record = PluginHost(ALONE, [watch.watcher, "app_toy"]).record()
    assert record.extra == ("app_watch:watcher", "app_toy")
    assert record.manifest == ()


def test_an_object_without_a_global_name_runs_here_and_cannot_be_recorded() -> None:
    host = PluginHost(ALONE, [Watcher(), Watcher()])
    assert [info.status for info in host.plugins if not info.distribution] == ["active", "active"]
    with pytest.raises(PluginError) as caught:
        host.record()
    error = caught.value
    assert error.code == "LM-PLUGIN-NOT-IMPORTABLE"
    assert "Watcher" in error.report.summary
    assert "no global of module" in error.report.why
    assert "module:name" in error.hints[0]


def test_an_object_of_the_main_module_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    import __main__

    watcher = type("Watcher", (Watcher,), {"__module__": "__main__"})()
    monkeypatch.setattr(__main__, "watcher", watcher, raising=False)
    with pytest.raises(PluginError) as caught:
        PluginHost(ALONE, [watcher]).record()
    assert "__main__" in caught.value.report.why


def test_a_module_that_is_imported_under_another_name_cannot_be_recorded(site: FakeSite) -> None:
    toy = module(site, "app_toy", toy_format())
    toy.__name__ = "json"
    with pytest.raises(PluginError) as caught:
        PluginHost(ALONE, [toy]).record()
    assert caught.value.report.why == "importing 'json' gives another object"
    toy.__name__ = "a_module_that_is_not_there"
    with pytest.raises(PluginError, match="importing 'a_module_that_is_not_there' fails"):
        PluginHost(ALONE, [toy]).record()


class Misspelt:
    @hookimpl
    def loadmaster_evnt(self, event: object) -> None: ...


class Tomorrow(Watcher):
    loadmaster_api_version = 2


class Explosive(Watcher):
    @property
    def loadmaster_api_version(self) -> int:
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (Watcher, "Watcher is a class; a plugin is a module or an instance"),
        (Misspelt(), "unknown hook 'loadmaster_evnt'; did you mean 'loadmaster_event'?"),
        (object(), "it implements no hook"),
        (Tomorrow(), "written for contract version 2; this loadmaster has version 1"),
        (Explosive(), "RuntimeError: boom"),
        ("a_module_that_is_not_there:plugin", "importing it fails: ModuleNotFoundError"),
        ("json:nothing", "importing it fails: AttributeError"),
    ],
)
def test_an_unusable_plugin_is_refused(extra: object, why: str) -> None:
    with pytest.raises(PluginError) as caught:
        PluginHost(ALONE, [extra])
    assert caught.value.code == "LM-PLUGIN-INVALID"
    assert why in caught.value.report.why


def test_the_same_object_twice_is_refused(site: FakeSite) -> None:
    watch = module(site, "app_watch", WATCHER)
    with pytest.raises(PluginError, match="another plugin has this name"):
        PluginHost(ALONE, [watch.watcher, "app_watch:watcher"])
    site.install("acme-watch", "1.0", {"acme": "app_watch:watcher"})
    with pytest.raises(PluginError, match="same object as plugin 'acme'"):
        PluginHost(ALONE, [watch.watcher])
