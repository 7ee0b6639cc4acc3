"""The command: makes what is missing, compares, prints a line per case, and writes the page."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bench.environments import ROOT, EnvironmentFailed
from conformance.cases import CASES, SCRIPTS, Case
from conformance.compare import compare
from conformance.folders import cache_folder
from conformance.page import row_words, write_page
from conformance.produce import ProducerFailed, produced
from conformance.records import Finding, Report
from loadmaster import LoadmasterError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison as the command line asks. Return 0 when everything that was asked for agrees or differs as known."""
    options = _options(arguments)
    chosen = [case for case in CASES if case.producer in options.producers and options.only in case.name]
    findings = [_tell(_finding(case, options.cache)) for case in chosen]
    now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = {name: version(name) for name in ("loadmaster", "torch", "transformers")}
    if options.page:
        write_page(Report(date=now, versions=versions, findings=tuple(findings)), options.page)
    return 0 if all(finding.fine for finding in findings) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument("--producers", nargs="+", choices=SCRIPTS, default=list(SCRIPTS), help="whose files to compare [all]")
    parser.add_argument("--only", default="", metavar="PART", help="cases whose name holds this; the page is then left alone")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder for environments and models [%(default)s]")
    parser.add_argument(
        "--page", type=Path, help="page to put the table into [docs/conformance.md when everything is compared]"
    )
    options = parser.parse_args(arguments)
    if options.page is None and not options.only and set(options.producers) == set(SCRIPTS):
        options.page = ROOT / "docs" / "conformance.md"
    return options


def _finding(case: Case, cache: Path) -> Finding:
    """Compare one case. Failures of the producer and of loadmaster are its result."""
    try:
        folder = produced(case, cache)
    except (EnvironmentFailed, ProducerFailed) as error:
        return Finding(case=case.name, producer=case.producer, error=str(error))
    versions = json.loads((folder / "expected" / "versions.json").read_text(encoding="utf-8"))
    try:
        return Finding(case=case.name, producer=case.producer, outcome=compare(folder), versions=versions, known=case.known)
    except (LoadmasterError, ValueError) as error:
        return Finding(case=case.name, producer=case.producer, error=str(error), versions=versions)


def _tell(finding: Finding) -> Finding:
    sys.stdout.write("  ".join(row_words(finding)) + "\n")
    sys.stdout.flush()
    return finding
