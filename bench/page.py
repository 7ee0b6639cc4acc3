"""The results as Markdown, put between two marks of a page that people wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from bench.chart import bar_chart
from bench.markdown import megabytes, middle, number, spread, table
from bench.marks import BEGIN, END, put_between_marks
from bench.records import Condition, Goal, Measurement, Report
from bench.summary import FIGURES, Rounds

TITLES: Final[dict[Condition, str]] = {
    "hot": "Page cache hot",
    "cold": "Page cache cold",
    "second": "Second start, right after the cold one",
}


def write_page(report: Report, page: Path) -> None:
    """Put the report's tables into `page`, which is made where it does not exist, and its chart beside it."""
    chart = page.with_suffix(".svg")
    chart.write_text(draw(report), encoding="utf-8")
    put(page, render(report, chart.name))


def put(page: Path, tables: str) -> None:
    """Put tables between the marks of a page, which is made where it does not exist. Raises ValueError when it has none."""
    if not page.exists():
        page.write_text(f"# Benchmark\n\n{BEGIN}\n{END}\n", encoding="utf-8")
    put_between_marks(page, tables)


def draw(report: Report) -> str:
    """Return the chart: load and touch, first token, and loading from cold storage."""
    rounds = Rounds(report.measurements)
    wanted: tuple[tuple[str, Condition, str], ...] = (
        ("Hot: load and touch of every page, seconds", "hot", "load+touch"),
        ("Hot: process start to first token, seconds", "hot", "first_token"),
        ("Cold: load phase, seconds", "cold", "load"),
    )
    panels = []
    for title, condition, figure in wanted:
        spans = {name: rounds.span(name, condition, FIGURES[figure]) for name in rounds.names(condition)}
        panels.append((title, {name: span for name, span in spans.items() if span}))
    return bar_chart([panel for panel in panels if panel[1]])


def render(report: Report, chart: str) -> str:
    """Return all sections as Markdown."""
    rounds = Rounds(report.measurements)
    sections = [head(report), f"![Medians of all contestants]({chart})\n", goals_section(report.goals)]
    for condition, title in TITLES.items():
        if rounds.names(condition):
            sections.append(f"### {title}\n\n{_times(rounds, condition, report)}")
    sections += [
        _ranks(rounds),
        _check(report),
        failures(report.measurements),
        _imports(report),
        contestants_section(report),
        machine(report),
    ]
    return "\n".join(section for section in sections if section)


def head(report: Report) -> str:
    """Return the sentence about how the series was made."""
    settings = report.settings
    ballast = {"load": "freed when a contestant is about to take memory", "start": "freed before the start", "off": "off"}
    return (
        f"Made on {report.date}: {settings.rounds} alternating rounds, model of {report.model_bytes / 1e9:.2f} GB, "
        f"ballast {ballast[settings.ballast]}.\n"
    )


def goals_section(goals: Iterable[Goal]) -> str:
    """Return the goals and whether they are met."""
    words = {True: "yes", False: "**no**", None: "not measured"}
    rows = [
        (goal.text, f"{'≥' if goal.at_least else '≤'} {goal.limit:g}", number(goal.measured, 3), words[goal.met], goal.how)
        for goal in goals
    ]
    return "### Goals\n\nRatios are medians of ratios within a round.\n\n" + table(
        ("goal", "limit", "measured", "met", "what was compared"), rows
    )


def _times(rounds: Rounds, condition: Condition, report: Report) -> str:
    base = "floor" if condition == "hot" else "raw-direct-16"
    header = ("contestant", "n", "imported s", "load s", "touch s", "load+touch s", "GB/s", f"load / {base}",
              "first token s", "sum PSS MB", "peak RSS MB")  # fmt: skip
    rows = []
    for name in rounds.names(condition):
        spans = {figure: rounds.span(name, condition, value) for figure, value in FIGURES.items()}
        load = spans["load+touch"] or spans["load"]
        rows.append(
            (
                name,
                str(load.count if load else 0),
                middle(spans["imported"]),
                spread(spans["load"]),
                middle(spans["touch"]),
                spread(spans["load+touch"]),
                number(report.model_bytes / load.median / 1e9 if load and load.median else None, 2),
                number(rounds.ratio(name, base, condition, FIGURES["load"]), 2),
                spread(spans["first_token"]),
                megabytes(spans["pss"]),
                megabytes(spans["peak_rss"]),
            )
        )
    return table(header, rows)


def _ranks(rounds: Rounds) -> str:
    """Return the table of several ranks against one, in every mode that has both; empty where there is none."""
    rows = []
    for condition, title in TITLES.items():
        for name in rounds.names(condition):
            one = re.sub(r"^(loadmaster|vllm)-tp[2-4]", r"\1-tp1", name)
            ratios = [rounds.ratio(name, one, condition, FIGURES[figure]) for figure in ("load", "load+touch", "first_token")]
            if one != name and any(ratios):
                rows.append((title, name, *(number(ratio, 2) for ratio in ratios)))
    header = ("page cache", "contestant", "load", "load+touch", "first token")
    return "### Several ranks against one\n\nRatio to the same over one rank.\n\n" + table(header, rows) if rows else ""


def _check(report: Report) -> str:
    rows = []
    for one in report.measurements:
        if one.round == 0 and not one.error:
            verdict = "not comparable" if not one.sums else "equal" if one.sums == report.expected_sums else "**different**"
            rows.append((one.contestant, verdict, " ".join(map(str, one.tokens))))
    text = (
        "### Was the same loaded?\n\nSums over all tensors after loading, compared with the files; the first greedy token.\n\n"
    )
    return text + table(("contestant", "sums", "token"), rows)


def failures(measurements: Sequence[Measurement]) -> str:
    """Return what did not run and why; empty where everything did."""
    seen: dict[tuple[str, str], list[str]] = {}
    for one in measurements:
        if one.error:
            seen.setdefault((one.contestant, one.error), []).append(f"{one.condition} {one.round}")
    if not seen:
        return ""
    parts = [f"**{name}** (rounds: {', '.join(rounds)})\n\n```text\n{error}\n```\n" for (name, error), rounds in seen.items()]
    return "### What did not run\n\n" + "\n".join(parts)


def _imports(report: Report) -> str:
    rows = [(f"`{name}`", f"{value:.3f}") for name, value in report.imports]
    return (
        f"### What a worker imports\n\n{report.imports_total:.2f} s in all under `-X importtime`, once for all workers. "
        f"The largest, by the time spent in their own modules:\n\n" + table(("package", "seconds"), rows)
    )


def contestants_section(report: Report) -> str:
    """Return who took part."""
    return "### Contestants\n\n" + table(("name", "what it does"), list(report.about.items()))


def machine(report: Report) -> str:
    """Return the machine and the ballast."""
    rows = list(report.machine.items())
    used = [one.ballast.nbytes for one in report.measurements if one.ballast and one.round > 0]
    if used and report.settings.ballast != "off":
        short = sum(one.ballast.nbytes < 0.95 * one.ballast.wanted for one in report.measurements if one.ballast)
        amount = f"{min(used) / 1e9:.1f} to {max(used) / 1e9:.1f} GB, by what a contestant takes"
        rows.append(("ballast", amount + (f"; too little memory was free for all of it in {short} runs" if short else "")))
    return "### Machine\n\n" + table(("", ""), rows)
