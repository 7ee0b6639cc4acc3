"""With `--json` standard output is exactly one JSON document, whatever happens."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from command_line import Invoke
from fake_api import FakeEngine
from loadmaster_hookspecs import PlanError
from loadmaster_hookspecs.plan import LoadPlan
from sample_plan import sample_plan


def test_inspect(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    outcome = invoke("inspect", "/models/small", "--json")
    assert outcome.code == 0
    assert outcome.document["ok"] is True
    assert outcome.document["inspection"]["source"] == "/models/small"


def test_plan_is_the_whole_plan(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    document = invoke("plan", "/models/small", "--json").document
    assert document["ok"] is True
    assert msgspec.convert(document["plan"], LoadPlan) == sample_plan()


def test_run_has_answers_report_and_notices(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    outcome = invoke("run", "/models/small", "hello", "--json")
    assert outcome.document["completions"] == [{"text": "echo: hello", "token_ids": [1, 2], "finish_reason": "stop"}]
    assert outcome.document["report"]["amplification"] == 1.0
    assert outcome.document["notices"] == ["temperature 0.1 from generation_config.json"]
    assert "loadmaster rank=1" in outcome.err


def test_env(invoke: Invoke) -> None:
    document = invoke("env", "--json").document
    assert document["ok"] is True
    assert document["env"]["packages"]["loadmaster"]
    assert {plugin["name"] for plugin in document["plugins"]} >= {"local-source", "transformers"}


def test_plugins_list(invoke: Invoke) -> None:
    assert invoke("plugins", "list", "--json").document["ok"] is True


def test_an_error_of_loadmaster(invoke: Invoke, failing_api: Callable[[BaseException], None]) -> None:
    failing_api(PlanError("LM-PLAN-HEADS", "heads do not fit", where={"heads": 28}, why="28 over 8", hints=("--tp 7",)))
    outcome = invoke("plan", "/models/small", "--json")
    assert outcome.document == {
        "ok": False,
        "error": {
            "code": "LM-PLAN-HEADS",
            "summary": "heads do not fit",
            "where": {"heads": 28},
            "why": "28 over 8",
            "hints": ["--tp 7"],
            "exit_code": 3,
            "traceback": "",
        },
    }
    assert outcome.err.startswith("error: heads do not fit  [LM-PLAN-HEADS]\n")


@pytest.mark.parametrize(
    ("arguments", "summary"),
    [
        (["plan", "/models/small", "--tp", "0", "--json"], "Invalid value for '--tp': 0 is not in the range x>=1"),
        (["plan", "--json"], "Missing argument 'MODEL'"),
        (["plan", "/models/small", "--json", "--nonsense"], "No such option '--nonsense'"),
        (["plna", "--json"], "no such command 'plna'; did you mean 'plan'?"),
    ],
)
def test_a_usage_error(invoke: Invoke, arguments: list[str], summary: str) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert outcome.document["error"]["summary"].startswith(summary)
    assert outcome.document["error"]["code"] == "LM-USAGE"


def test_an_unexpected_exception(invoke: Invoke, failing_api: Callable[[BaseException], None]) -> None:
    failing_api(ZeroDivisionError("three\nlines\nof text"))
    error = invoke("plan", "/models/small", "--json").document["error"]
    assert error["summary"] == "ZeroDivisionError: three lines of text"
    assert "in plan" in error["traceback"]


def test_a_prompt_that_looks_like_the_option(invoke: Invoke, fake_api: list[FakeEngine]) -> None:
    outcome = invoke("run", "/models/small", "--", "--json")
    assert outcome.out == "echo: --json\n"


def test_names_that_are_not_utf8(invoke: Invoke) -> None:
    missing = invoke("plan", "/tmp/\udcff", "--json")
    assert missing.code == 2
    assert missing.document["error"]["where"]["path"] == "/tmp/\\udcff"
    assert invoke("plan", "/", "--json", "--tp", "\udcff").document["error"]["code"] == "LM-USAGE"
