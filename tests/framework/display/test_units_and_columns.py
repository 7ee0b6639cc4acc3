from __future__ import annotations

import pytest

from loadmaster.display.columns import align, facts
from loadmaster.display.findings import finding_lines, ignored_text
from loadmaster.display.units import count, duration, rate, size, span
from loadmaster_hookspecs.findings import Finding, Ignored
from loadmaster_hookspecs.sharding import Interval


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_999, "1.0 MB"),
        (269_060_552, "269.1 MB"),
        (15_231_233_024, "15.23 GB"),
        (1_340_000_000_000, "1.34 TB"),
    ],
)
def test_sizes_are_decimal(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


def test_rates_and_durations() -> None:
    assert rate(870_000_000, 1.0) == "0.87 GB/s"
    assert rate(1, 0.0) == "-"
    assert duration(0.835) == "0.83 s"
    assert duration(125.4) == "2 min 05 s"


def test_counts_agree_with_their_noun() -> None:
    assert [count(number, "file") for number in (0, 1, 1234)] == ["0 files", "1 file", "1,234 files"]


def test_spans_are_inclusive_units() -> None:
    assert span([Interval(0, 384)], 64) == "0-5"
    assert span([Interval(128, 192)], 64) == "2"
    assert span([Interval(0, 2), Interval(6, 8)]) == "0-1,6-7"
    assert span([]) == "-"
    assert span([Interval(5, 5)]) == "-"


def test_columns_are_aligned_without_trailing_blanks() -> None:
    assert align([["rank", "read"], ["0", "1 B"], ["10", ""]], right=(1,)) == ["rank  read", "0      1 B", "10"]
    assert align([]) == []


def test_facts_continue_below_their_first_line() -> None:
    assert facts([("a", "1\n2"), ("long", "3")]) == ["a     1", "      2", "long  3"]


def test_findings_come_in_the_order_of_their_weight() -> None:
    info = Finding(level="info", code="LM-A", where="", message="told")
    error = Finding(level="error", code="LM-B", where="lm_head", message="absent", fix="download it")
    assert finding_lines([info, error]) == [
        "error    lm_head: absent  [LM-B]",
        "         try download it",
        "info     told  [LM-A]",
    ]


def test_ignored_items_are_grouped_by_reason() -> None:
    assert ignored_text(()) == "0 ignored"
    items = [Ignored(name=f"layers.{index}.inv_freq", reason="computed") for index in range(5)]
    items.append(Ignored(name="extra", reason="not of this model"))
    assert ignored_text(items) == (
        "6 ignored: layers.0.inv_freq, layers.1.inv_freq, layers.2.inv_freq and 2 more (computed); extra (not of this model)"
    )
