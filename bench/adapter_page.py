"""The results of hot loading as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.markdown import megabytes, spread, table
from bench.page import contestants_section, failures, goals_section, head, machine, put
from bench.records import Report
from bench.summary import Rounds, detail

GAPS: Final = {
    "without a load": "rest",
    "during a load": "load",
    "during the first load": "first",
}
"""The beginnings of the figures' names, by what went on."""


def write_adapter_page(report: Report, page: Path) -> None:
    """Put the report's tables into `page`, which is made where it does not exist."""
    rounds = Rounds(report.measurements)
    sections = (
        head(report),
        goals_section(report.goals),
        _gaps(rounds),
        _loads(rounds),
        failures(report.measurements),
        contestants_section(report),
        machine(report),
    )
    put(page, "\n".join(section for section in sections if section))


def _gaps(rounds: Rounds) -> str:
    rows = [
        (
            name,
            words,
            *(spread(rounds.span(name, "hot", detail(f"{begin}_{figure}"))) for figure in ("median", "p95", "longest")),
        )
        for name in rounds.names("hot")
        for words, begin in GAPS.items()
    ]
    header = ("contestant", "when", "median s", "95th percentile s", "longest s")
    return "### Time between two tokens of a request\n\n" + table(header, rows)


def _loads(rounds: Rounds) -> str:
    figures = ("loads", "first_load_seconds", "load_seconds", "answered", "compared_tokens", "failed", "changed")
    rows = []
    for name in rounds.names("hot"):
        memory = [megabytes(rounds.span(name, "hot", detail(f"memory_{when}"))) for when in ("before", "after")]
        rows.append((name, *(spread(rounds.span(name, "hot", detail(figure))) for figure in figures), *memory))
    header = ("contestant", "loads", "first load s", "load s", "answers", "tokens compared", "failed", "changed",
              "PSS before MB", "PSS after MB")  # fmt: skip
    return "### Loads, answers, memory\n\n" + table(header, rows)
