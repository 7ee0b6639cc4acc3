from __future__ import annotations

from collections.abc import Callable

import pytest

from fake_distribution import FakeSite, toy_format
from loadmaster.host import PluginHost, PluginSelection
from loadmaster_hookspecs import IntegrityError, PluginError, hookimpl

ALONE = PluginSelection(blocked=("loadmaster",))


class Toy:
    """A format loader whose methods are never called here."""

    def __init__(self, name: object = "toy") -> None:
        self.name = name

    def detect(self, source: object) -> None: ...

    def open(self, source: object) -> None: ...

    def reader(self, source: object, file: object) -> None: ...


class Shift:
    """A transform of a chosen version."""

    def __init__(self, version: int) -> None:
        self.name = "shift"
        self.version = version

    def granule(self, args: object) -> tuple[int, int]:
        return 1, 1

    def apply(self, source: object, dest: object, args: object) -> dict[str, int]:
        return {}


class Formats:
    """A plugin that returns what it was given from `loadmaster_formats`, or raises it."""

    def __init__(self, result: object) -> None:
        self.result = result
        self.calls = 0

    @hookimpl
    def loadmaster_formats(self) -> object:
        self.calls += 1
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


def host_with(*results: object) -> PluginHost:
    return PluginHost(ALONE, [Formats(result) for result in results])


def test_objects_are_looked_up_by_name() -> None:
    one, two = Toy("one"), Toy("two")
    host = host_with([two], (one,))
    assert [id(host.format(name)) for name in ("one", "two")] == [id(one), id(two)]
    assert list(host.formats()) == ["one", "two"]


def test_a_hook_is_called_once_and_only_when_needed() -> None:
    plugin = Formats([Toy()])
    host = PluginHost(ALONE, [plugin])
    assert plugin.calls == 0
    host.format("toy")
    host.formats()
    assert plugin.calls == 1


def test_hosts_share_nothing() -> None:
    assert list(host_with([Toy("a")]).formats()) == ["a"]
    assert list(host_with([Toy("b")]).formats()) == ["b"]


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "returned None instead of a sequence of objects"),
        ("toy", "returned an object of type str instead of a sequence"),
        ({"toy": Toy()}, "returned an object of type dict instead of a sequence"),
        ((Toy() for _ in range(1)), "returned an object of type generator instead of a sequence"),
        ([None], "returned None without name, detect, open, reader"),
        ([Shift(1)], "returned an object of type Shift without detect, open, reader"),
        ([Toy], "returned the class Toy instead of an instance"),
        ([Toy("")], "whose name is ''"),
        ([Toy(3)], "whose name is 3"),
    ],
)
def test_a_wrong_result_names_plugin_and_hook(site: FakeSite, result: object, problem: str) -> None:
    with pytest.raises(PluginError) as caught:
        host_with(result).formats()
    error = caught.value
    assert error.code == "LM-PLUGIN-RESULT"
    assert problem in error.report.summary
    assert "Formats" in error.report.summary
    assert error.report.where["hook"] == "loadmaster_formats"


def test_an_exception_is_attributed_to_its_plugin(site: FakeSite) -> None:
    text = "from loadmaster_hookspecs import hookimpl\n@hookimpl\ndef loadmaster_formats():\n    return 1 / 0\n"
    site.install("acme-formats", "1.2", {"acme": "acme_raises"}, {"acme_raises": text})
    with pytest.raises(PluginError) as caught:
        PluginHost(ALONE).format("toy")
    error = caught.value
    assert error.code == "LM-PLUGIN-FAILED"
    assert error.report.where == {
        "plugin": "acme",
        "distribution": "acme-formats",
        "version": "1.2",
        "hook": "loadmaster_formats",
    }
    assert error.report.why == "ZeroDivisionError: division by zero"
    assert error.hints == ("leave acme out: -p no:acme",)
    assert "acme_raises.py" in error.report.traceback
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_an_exit_inside_a_hook_does_not_end_the_process() -> None:
    with pytest.raises(PluginError, match="SystemExit: 7"):
        host_with(SystemExit(7)).formats()


def test_errors_meant_for_the_user_and_interrupts_pass_unchanged() -> None:
    error = IntegrityError("LM-TOY", "a toy is broken")
    with pytest.raises(IntegrityError) as caught:
        host_with(error).formats()
    assert caught.value is error
    with pytest.raises(KeyboardInterrupt):
        host_with(KeyboardInterrupt()).formats()


def test_a_failing_name_is_attributed() -> None:
    class Nameless(Toy):
        @property
        def name(self) -> object:
            raise OSError("no name today")

        @name.setter
        def name(self, value: object) -> None: ...

    with pytest.raises(PluginError, match="no name today") as caught:
        host_with([Nameless()]).formats()
    assert caught.value.code == "LM-PLUGIN-FAILED"


def test_two_providers_of_one_name_are_an_error_that_names_both(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}, {"acme_toy": toy_format("toy")})
    site.install("rival-formats", "2.1", {"rival": "rival_toy"}, {"rival_toy": toy_format("toy")})
    with pytest.raises(PluginError) as caught:
        PluginHost(ALONE).format("toy")
    error = caught.value
    assert error.code == "LM-PLUGIN-CONFLICT"
    assert error.report.summary == "more than one format is called 'toy'"
    assert "acme (acme-formats 1.0)" in error.report.why
    assert "rival (rival-formats 2.1)" in error.report.why
    assert sorted(error.hints) == ["leave acme out: -p no:acme", "leave rival out: -p no:rival"]
    for name in ("acme", "rival"):
        assert PluginHost(ALONE.choose([f"no:{name}"])).format("toy").name == "toy"


def test_an_unknown_name_lists_the_known_ones_and_what_is_left_out(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_broken"}, {"acme_broken": "import a_module_that_is_not_there"})
    host = PluginHost(ALONE, [Formats([Toy("toy"), Toy("other")])])
    with pytest.raises(PluginError) as caught:
        host.format("tooy")
    error = caught.value
    assert error.code == "LM-PLUGIN-UNKNOWN"
    assert error.report.why == "known: other, toy"
    assert error.hints[0] == "did you mean 'toy'?"
    assert "acme (acme-formats 1.0), failed" in error.hints[1]


def test_every_family_refuses_an_unknown_name() -> None:
    host = PluginHost(ALONE)
    lookups: dict[str, Callable[[str], object]] = {
        "format": host.format,
        "model family": host.family,
        "shard strategy": host.strategy,
        "executor": host.executor,
        "transform": lambda name: host.transform(name, 1),
    }
    for noun, look_up in lookups.items():
        with pytest.raises(PluginError, match=f"no {noun} is called 'x") as caught:
            look_up("x")
        assert caught.value.report.why == "known: none"


def test_versions_of_a_transform_live_side_by_side() -> None:
    class Transforms:
        def __init__(self, *versions: int) -> None:
            self.transforms = [Shift(version) for version in versions]

        @hookimpl
        def loadmaster_transforms(self) -> object:
            return self.transforms

    host = PluginHost(ALONE, [Transforms(1, 2)])
    assert host.transform("shift", 1).version == 1
    assert host.transform("shift", 2).version == 2
    with pytest.raises(PluginError, match="'shift v3'") as caught:
        host.transform("shift", 3)
    assert caught.value.report.why == "known: shift v1, shift v2"
    with pytest.raises(PluginError, match="more than one transform is called 'shift v1'"):
        PluginHost(ALONE, [Transforms(1), Transforms(1)]).transform("shift", 1)


def test_later_calls_of_an_object_can_be_attributed(site: FakeSite) -> None:
    site.install("acme-formats", "1.2", {"acme": "acme_toy"}, {"acme_toy": toy_format()})
    host = PluginHost(ALONE)
    loader = host.format("toy")
    with pytest.raises(PluginError) as caught, host.attributed(loader, "open of format toy"):
        raise KeyError("weights")
    assert caught.value.report.where["plugin"] == "acme"
    assert caught.value.report.where["call"] == "open of format toy"
    with pytest.raises(KeyError), host.attributed(object(), "open"):
        raise KeyError("weights")


def test_commands_need_a_name_only() -> None:
    click = pytest.importorskip("click")

    class Commands:
        @hookimpl
        def loadmaster_commands(self) -> object:
            return [click.Command("weigh")]

    assert list(PluginHost(ALONE, [Commands()]).commands()) == ["weigh"]
