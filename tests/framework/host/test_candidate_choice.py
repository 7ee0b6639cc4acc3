from __future__ import annotations

from collections.abc import Mapping

import pytest

from fake_distribution import FakeSite, toy_format
from loadmaster.host import PluginHost, PluginSelection
from loadmaster_hookspecs import IntegrityError, PlanError, PluginError, UsageError, hookimpl
from loadmaster_hookspecs.findings import Match
from loadmaster_hookspecs.sources import FileEntry, RangeReader

ALONE = PluginSelection(blocked=("loadmaster",))


class Folder:
    """A source that lists names and holds nothing."""

    def __init__(self, *names: str) -> None:
        self.uri = "folder"
        self.bytes_read = 0
        self.names = names

    def files(self) -> tuple[FileEntry, ...]:
        return tuple(FileEntry(name=name, size=1) for name in self.names)

    def size(self, name: str) -> int:
        return 1

    def read(self, name: str, offset: int, size: int) -> bytes:
        return b""

    def open(self, name: str) -> RangeReader:
        raise NotImplementedError


class Candidate:
    """A source provider, format loader and model family at once: answers every question with `answer`, or raises it."""

    def __init__(self, name: str, answer: object) -> None:
        self.name = name
        self.answer = answer

    def claim(self, uri: str) -> object:
        return self._answer()

    def detect(self, source: object) -> object:
        return self._answer()

    def match(self, config: Mapping[str, object]) -> object:
        return self._answer()

    def open(self, uri: str) -> Folder:
        if uri == "broken":
            raise OSError("unreachable")
        return Folder(self.name)

    def _answer(self) -> object:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def reader(self) -> None: ...
    def preload(self) -> None: ...
    def outline(self) -> None: ...
    def describe(self) -> None: ...
    def build(self) -> None: ...
    def tokenizer(self) -> None: ...


class Plugin:
    """Registers its candidates in every family that is chosen by evidence."""

    def __init__(self, *candidates: Candidate) -> None:
        self.candidates = candidates

    @hookimpl
    def loadmaster_sources(self) -> object:
        return self.candidates

    @hookimpl
    def loadmaster_formats(self) -> object:
        return self.candidates

    @hookimpl
    def loadmaster_models(self) -> object:
        return self.candidates


def claims(score: float) -> Match:
    return Match(score=score, evidence=f"evidence of {score}")


def host_with(*candidates: Candidate) -> PluginHost:
    return PluginHost(ALONE, [Plugin(candidate) for candidate in candidates])


def test_the_highest_score_wins_in_any_order() -> None:
    low, high, none = Candidate("low", claims(0.4)), Candidate("high", claims(0.9)), Candidate("none", None)
    for order in ((low, high, none), (none, high, low), (high, low, none)):
        host = host_with(*order)
        assert host.detect_format(Folder()).name == "high"
        assert host.match_family({}).name == "high"
        assert [entry.name for entry in host.open_source("x").files()] == ["high"]


def test_a_tie_names_both_providers_with_versions_and_evidence(site: FakeSite) -> None:
    site.install("acme-formats", "1.0", {"acme": "acme_toy"}, {"acme_toy": toy_format("a", 0.5, "saw a.json")})
    site.install("rival-formats", "2.1", {"rival": "rival_toy"}, {"rival_toy": toy_format("b", 0.5, "saw b.json")})
    with pytest.raises(PluginError) as caught:
        PluginHost(ALONE).detect_format(Folder())
    error = caught.value
    assert error.code == "LM-PLUGIN-TIE"
    assert error.report.why == (
        "a by acme (acme-formats 1.0): 0.50, saw a.json; b by rival (rival-formats 2.1): 0.50, saw b.json"
    )
    assert error.hints == ("leave acme out: -p no:acme", "leave rival out: -p no:rival")


def test_a_tie_below_the_highest_score_is_none() -> None:
    host = host_with(Candidate("a", claims(0.5)), Candidate("b", claims(0.5)), Candidate("c", claims(0.6)))
    assert host.detect_format(Folder()).name == "c"


def test_a_score_of_zero_is_no_claim() -> None:
    with pytest.raises(UsageError):
        host_with(Candidate("a", claims(0.0))).open_source("x")


def test_nobody_can_open_an_address() -> None:
    with pytest.raises(UsageError) as caught:
        host_with(Candidate("local", None)).open_source("s3://bucket")
    assert caught.value.code == "LM-SOURCE-UNKNOWN"
    assert "'s3://bucket'" in caught.value.report.summary
    assert "local" in caught.value.hints[0]


def test_nobody_recognises_the_files() -> None:
    names = [f"file-{number}" for number in range(10)]
    with pytest.raises(IntegrityError) as caught:
        host_with(Candidate("toy", None)).detect_format(Folder(*names))
    error = caught.value
    assert error.code == "LM-FORMAT-UNKNOWN"
    assert error.report.where == {"source": "folder"}
    assert error.report.why.startswith("it holds 10 files: file-0, file-1,")
    assert error.report.why.endswith("file-7 and 2 more")
    assert error.hints[0].startswith("tried: toy by ")


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"architectures": ["ToyForCausalLM"], "model_type": "toy"}, "ToyForCausalLM (model_type toy)"),
        ({"architectures": {"a": 1}}, "a model without architecture (model_type not given)"),
        ({}, "a model without architecture (model_type not given)"),
    ],
)
def test_nobody_can_build_the_model(config: dict[str, object], shown: str) -> None:
    with pytest.raises(PlanError) as caught:
        host_with(Candidate("library", None)).match_family(config)
    assert caught.value.code == "LM-FAMILY-UNKNOWN"
    assert shown in caught.value.report.summary


def test_without_any_candidate_the_hint_says_what_is_left_out() -> None:
    with pytest.raises(UsageError) as caught:
        PluginHost(ALONE).open_source("x")
    assert caught.value.hints[0] == "tried: none"
    assert "local-source (loadmaster" in caught.value.hints[1]


@pytest.mark.parametrize("answer", [True, 0.9, claims(1.5), claims(-0.1), claims(float("nan")), Match(score="1", evidence="")])  # type: ignore[arg-type]
def test_a_wrong_answer_names_the_plugin(answer: object) -> None:
    with pytest.raises(PluginError) as caught:
        host_with(Candidate("odd", answer)).detect_format(Folder())
    assert caught.value.code == "LM-PLUGIN-RESULT"
    assert "detect of format odd" in caught.value.report.summary
    assert "Plugin" in str(caught.value.report.where["plugin"])


def test_a_failing_candidate_is_named() -> None:
    host = host_with(Candidate("good", claims(1.0)), Candidate("bad", ValueError("what is this")))
    for ask, call in (
        (lambda: host.open_source("x"), "claim of source bad"),
        (lambda: host.detect_format(Folder()), "detect of format bad"),
        (lambda: host.match_family({}), "match of model family bad"),
    ):
        with pytest.raises(PluginError) as caught:
            ask()
        assert caught.value.code == "LM-PLUGIN-FAILED"
        assert caught.value.report.where["call"] == call
        assert caught.value.report.why == "ValueError: what is this"


def test_a_candidate_may_refuse_with_an_error_for_the_user() -> None:
    error = IntegrityError("LM-FILE-LFS", "the file is a pointer")
    with pytest.raises(IntegrityError) as caught:
        host_with(Candidate("strict", error)).detect_format(Folder())
    assert caught.value is error


def test_a_provider_that_fails_to_open_is_named() -> None:
    with pytest.raises(PluginError) as caught:
        host_with(Candidate("local", claims(1.0))).open_source("broken")
    assert caught.value.report.where["call"] == "open of source local"
