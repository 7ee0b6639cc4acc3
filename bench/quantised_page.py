"""The results with a 4-bit model as Markdown."""

from __future__ import annotations

import re
from pathlib import Path

from bench.markdown import megabytes, middle, number, spread, table
from bench.page import contestants_section, failures, goals_section, head, machine, put
from bench.quantised_names import bf16_name, floor_name
from bench.records import Report
from bench.summary import Rounds, detail, memory, seconds

RATE = detail("tokens_per_second")


def write_quantised_page(report: Report, page: Path) -> None:
    """Put the report's tables into `page`, which is made where it does not exist."""
    rounds = Rounds(report.measurements)
    sections = (
        head(report),
        goals_section(report.goals),
        _loads(rounds),
        _memory(rounds),
        _decoding(rounds),
        _tokens(report),
        failures(report.measurements),
        contestants_section(report),
        machine(report),
    )
    put(page, "\n".join(section for section in sections if section))


def _loads(rounds: Rounds) -> str:
    rows = []
    for name in rounds.names("hot"):
        load = rounds.span(name, "hot", seconds("load"))
        ratio = rounds.ratio(name, floor_name(_ranks(name)), "hot", seconds("load"))
        binding = rounds.span(name, "hot", detail("stage_bind"))
        amplification = rounds.span(name, "hot", detail("amplification"))
        count = str(load.count if load else 0)
        shown = number(amplification.median if amplification else None, 3)
        rows.append((name, count, spread(load), number(ratio, 2), middle(binding), shown))
    header = ("contestant", "n", "load s", "load / floor of as many ranks", "binding and repacking s", "node amplification")
    return "### Loading\n\nThe load phase counts repacking.\n\n" + table(header, rows)


def _memory(rounds: Rounds) -> str:
    figures = (detail("grown_bytes"), detail("planned_bytes"), detail("viewed_bytes"), memory("pss"), memory("peak_rss"))
    rows = [(name, *(megabytes(rounds.span(name, "hot", figure)) for figure in figures)) for name in rounds.names("hot")]
    header = ("contestant", "growth MB", "planned MB", "views of files MB", "sum PSS MB", "peak RSS MB")
    text = (
        "### Memory\n\nGrowth is that of the PSS of all processes, from before weights take memory until they are loaded. "
        "Planned are the bytes of the arenas; views of files count when they are first read.\n\n"
    )
    return text + table(header, rows)


def _decoding(rounds: Rounds) -> str:
    rows = []
    for name in rounds.names("hot"):
        if rate := rounds.span(name, "hot", RATE):
            ratio = rounds.ratio(name, bf16_name(_ranks(name)), "hot", RATE)
            rows.append((name, spread(rate), number(ratio, 2), spread(rounds.span(name, "hot", seconds("first_token")))))
    header = ("contestant", "tokens/s", "beside bfloat16", "start to first token s")
    text = "### Decoding\n\nGreedy tokens after the first, for one prompt of sixteen tokens.\n\n"
    return text + table(header, rows) if rows else ""


def _tokens(report: Report) -> str:
    """Return the first answers, which agree where the same weights are multiplied with the same rounding."""
    rows = [
        (one.contestant, " ".join(map(str, one.tokens[:8])), "; ".join(note for note in one.notes if note.startswith("kernel")))
        for one in report.measurements
        if one.round == 1 and one.tokens
    ]
    text = "### Answers\n\nThe first tokens of each answer. Weights are random, so that rounding may decide between tokens.\n\n"
    return text + table(("contestant", "tokens", "notes"), rows) if rows else ""


def _ranks(name: str) -> int:
    found = re.search(r"-tp(\d)", name)
    return int(found[1]) if found else 1
