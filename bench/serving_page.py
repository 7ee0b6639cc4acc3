"""The results of serving as Markdown."""

from __future__ import annotations

from pathlib import Path

from bench.markdown import megabytes, spread, table
from bench.page import contestants_section, failures, goals_section, head, machine, put
from bench.records import Report
from bench.serving_names import BATCHES, PROMPTS, SINGLE, first_name, rate_name
from bench.summary import Rounds, detail, memory, seconds


def write_serving_page(report: Report, page: Path) -> None:
    """Put the report's tables into `page`, which is made where it does not exist."""
    rounds = Rounds(report.measurements)
    sections = (
        head(report),
        goals_section(report.goals),
        _speed(rounds),
        _agreement(report),
        failures(report.measurements),
        contestants_section(report),
        machine(report),
    )
    put(page, "\n".join(section for section in sections if section))


def _speed(rounds: Rounds) -> str:
    rows = []
    for name in rounds.names("hot"):
        rates = [spread(rounds.span(name, "hot", detail(rate_name(batch)))) for batch in BATCHES]
        firsts = [spread(rounds.span(name, "hot", detail(first_name(prompt)))) for prompt in PROMPTS]
        ready = spread(rounds.span(name, "hot", seconds("loaded")))
        rows.append((name, *rates, *firsts, ready, megabytes(rounds.span(name, "hot", memory("pss")))))
    header = (
        "contestant",
        *(f"tokens/s, batch {batch}" for batch in BATCHES),
        *(f"first token after {prompt}, s" for prompt in PROMPTS),
        "start to ready s",
        "sum PSS MB",
    )
    return "### Speed\n\nMedians of all rounds, with the extremes.\n\n" + table(header, rows)


def _agreement(report: Report) -> str:
    """Return how many first tokens are those of loadmaster with one thread."""
    firsts = {one.contestant: one.tokens for one in report.measurements if one.round == 1 and one.tokens}
    known = firsts.get(SINGLE, [])
    rows = []
    for name, tokens in firsts.items():
        same = sum(own == other for own, other in zip(tokens, known, strict=False))
        rows.append((name, f"{same} of {len(tokens)}" if known and "tp2" not in name else ""))
    text = (
        "### Answers\n\nFirst tokens of the answers to the most requests at once that are those of "
        f"`{SINGLE}`. Rounding to bfloat16 decides between close ones; the prompts are random tokens.\n\n"
    )
    return text + table(("contestant", "same first tokens"), rows) if rows else ""
