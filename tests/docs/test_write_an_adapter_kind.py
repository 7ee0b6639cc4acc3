"""The tutorial's adapter kind is short, shown as it is, and gives peft's logits; the tests that the page shows pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from fake_distribution import fake_site
from tiny_models import relative_error

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-an-adapter-kind.md").read_text(encoding="utf-8")
PROJECT = ROOT / "contrib" / "loadmaster-vera"
MODULE = "src/loadmaster_vera/__init__.py"
TESTS = "tests/test_vera.py"
SHOWN = dict(re.findall(r"^`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


def _own_tests() -> Any:
    """Return the distribution's tests as a module."""
    spec = spec_from_file_location("tests_of_loadmaster_vera", PROJECT / TESTS)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OWN = _own_tests()
made = OWN.made
test_logits_are_pefts = OWN.test_logits_are_pefts
test_every_byte_is_read_once_and_what_is_cut_alike_is_held_once = (
    OWN.test_every_byte_is_read_once_and_what_is_cut_alike_is_held_once
)
test_what_does_not_fit_is_refused_by_name = OWN.test_what_does_not_fit_is_refused_by_name


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "src"))


@pytest.fixture(autouse=True)
def installed(
    request: pytest.FixtureRequest, importable: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Make the plugin look installed, but where it is passed by hand."""
    if "by_hand" in request.fixturenames:
        yield
        return
    with fake_site(tmp_path_factory.mktemp("site"), monkeypatch) as site:
        site.install("loadmaster-vera", "0.1.0", {"vera": "loadmaster_vera"})
        yield


@pytest.fixture
def by_hand() -> None:
    """Ask that the plugin is not installed."""


def test_the_modules_are_shown_as_they_are() -> None:
    for name in (MODULE, TESTS):
        assert SHOWN[name] == (PROJECT / name).read_text(encoding="utf-8")
    assert (PROJECT / "pyproject.toml").read_text(encoding="utf-8").startswith(SHOWN["pyproject.toml"])


def test_the_kind_is_short() -> None:
    assert sum(bool(line.strip()) for line in SHOWN[MODULE].splitlines()) < 130


def test_the_tutorials_call_gives_pefts_logits(by_hand: None, made: Any) -> None:
    (example,) = re.findall(r"```python\n(import loadmaster as lm.*?)```", PAGE, re.DOTALL)
    names: dict[str, Callable[..., Any]] = {}
    exec(example, names)
    assert relative_error(names["logits_over_two_ranks"](made.model, made.adapter), made.logits) < 1e-5
