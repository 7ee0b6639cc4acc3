from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from command_line import Invoke
from fake_api import FakeEngine
from loadmaster_hookspecs.plan import LoadPlan
from sample_plan import sample_plan


def test_answers_alone_go_to_standard_output(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    outcome = invoke("run", "/models/small", "first", "second")
    assert outcome.out == "echo: first\necho: second\n"
    assert "loadmaster rank=0" in outcome.err
    assert "note      temperature 0.1 from generation_config.json" in outcome.err
    assert outcome.err.index("prompt    first") < outcome.err.index("prompt    second")


def test_quiet_leaves_the_answers_only(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    for arguments in (["-q", "run", "/models/small", "a", "b"], ["run", "/models/small", "a", "b", "-q"]):
        outcome = invoke(*arguments)
        assert (outcome.out, outcome.err) == ("echo: a\necho: b\n", "")


def test_options_reach_the_engine(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    invoke(
        *("run", "/models/small", "hi", "--tp", "2", "--executor", "multiprocess", "--dtype", "float32", "--equal-ranks"),
        *("--max-tokens", "8", "--temperature", "0", "--seed", "7", "--chat", "--read-mode", "gathered", "--kernel", "dequant"),
        *("--adapter", "a=/adapters/a", "--adapter", "b=/adapters/b=2", "--adapter-mode", "live", "--use", "b"),
    )
    (engine,) = fake_api
    selection = engine.settings.pop("selection")
    assert selection.blocked == ()
    assert engine.settings == {
        "executor": "multiprocess",
        "tensor_parallel": 2,
        "dtype": "float32",
        "device": "cpu",
        "read_mode": "gathered",
        "equal_ranks": True,
        "kernel": "dequant",
        "adapters": {"a": "/adapters/a", "b": "/adapters/b=2"},
        "adapter_mode": "live",
    }
    asked = {"prompts": ["hi"], "max_tokens": 8, "temperature": 0.0, "seed": 7, "chat": True, "adapter": "b"}
    assert engine.asked == asked
    assert engine.closed


def test_what_is_not_asked_for_is_left_to_the_model(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    invoke("run", "/models/small", "hi")
    asked = {"prompts": ["hi"], "max_tokens": 128, "temperature": None, "seed": None, "chat": False, "adapter": None}
    assert fake_api[0].asked == asked
    assert fake_api[0].settings["executor"] is None


@pytest.mark.parametrize(("adapters", "used"), [(["a=x"], "a"), (["a=x", "b=y"], None)])
def test_the_only_adapter_answers(invoke: Invoke, fake_api: list[FakeEngine], adapters: list[str], used: str | None) -> None:
    invoke("run", "/models/small", "hi", *(word for each in adapters for word in ("--adapter", each)))
    assert fake_api[0].asked["adapter"] == used


@pytest.mark.parametrize("value", ["a", "=x", "a="])
def test_an_adapter_needs_name_and_path(invoke: Invoke, fake_api: list[FakeEngine], value: str) -> None:
    assert invoke("run", "/models/small", "hi", "--adapter", value).code == 2
    assert fake_api == []


def test_plugin_choices_reach_the_engine(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    invoke("-p", "no:alpha", "run", "/models/small", "hi", "-p", "no:beta", "--no-plugins")
    selection = fake_api[0].settings["selection"]
    assert selection.blocked == ("alpha", "beta")
    assert selection.allowed == ()


def test_standard_input_is_one_prompt(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    assert invoke("run", "/models/small", stdin="two\nlines\n").out == "echo: two\nlines\n"
    assert fake_api[0].asked["prompts"] == ["two\nlines"]


def test_standard_input_is_left_alone_when_there_is_a_prompt(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    assert invoke("run", "/models/small", "hi", stdin="ignored").out == "echo: hi\n"


def test_without_a_prompt_the_model_is_loaded_and_reported(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    for stdin in (None, ""):
        outcome = invoke("run", "/models/small", stdin=stdin)
        assert outcome.code == 0
        assert outcome.out == ""
        assert "loadmaster rank=1" in outcome.err
        assert fake_api[-1].asked == {}


def test_a_report_that_could_not_be_written_is_refused_before_the_load(
    invoke: Invoke, fake_api: list[FakeEngine], tmp_path: Path
) -> None:
    outcome = invoke("run", "/models/small", "--report", str(tmp_path / "nowhere" / "report.json"))
    assert outcome.code == 2
    assert "the folder does not exist" in outcome.err
    assert fake_api == []


def test_the_report_is_written_as_json(invoke: Invoke, fake_api: list[FakeEngine], tmp_path: Path) -> None:
    invoke("run", "/models/small", "--report", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["bytes_read"] == 200_000_000
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]


def test_plan_prints_the_table(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    outcome = invoke("plan", "/models/small", "--tp", "2")
    assert "6+3 query and 2+1 key-value heads" in outcome.out
    assert outcome.err == ""


def test_plan_is_written_as_json(invoke: Invoke, fake_api: list[FakeEngine], tmp_path: Path) -> None:
    outcome = invoke("plan", "/models/small", "-o", str(tmp_path / "plan.json"))
    assert outcome.code == 0
    assert msgspec.json.decode((tmp_path / "plan.json").read_bytes(), type=LoadPlan) == sample_plan()


def test_a_file_that_cannot_be_written_is_the_users_mistake(invoke: Invoke, fake_api: list[FakeEngine], tmp_path: Path) -> None:
    outcome = invoke("plan", "/models/small", "-o", str(tmp_path / "absent" / "plan.json"))
    assert outcome.code == 2
    assert "No such file or directory" in outcome.err
