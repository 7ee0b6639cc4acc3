"""The last result as Markdown."""

from __future__ import annotations

from pathlib import Path

from bench.marks import put_between_marks
from conformance.records import LOGITS_LIMIT, RANKS_LIMIT, Finding, Report


def write_page(report: Report, page: Path) -> None:
    """Put the result between the marks of `page`. Raises ValueError when it has none."""
    put_between_marks(page, render(report))


def render(report: Report) -> str:
    """Return the date, the versions and the table."""
    agreeing = sum(finding.outcome is not None and finding.outcome.agrees for finding in report.findings)
    compared = sum(finding.outcome is not None for finding in report.findings)
    known = sum(finding.fine for finding in report.findings) - agreeing
    verdict = f"{agreeing} of {compared} files agree, {known} differ as known"
    head = f"Made on {report.date}: {verdict} ({_versions(report.versions)})."
    producers = {finding.producer: finding.versions for finding in report.findings if finding.versions}
    made_by = [f"- {_versions(versions)}" for versions in producers.values()]
    table = [
        f"| file | matrices | of them different | logits (limit {LOGITS_LIMIT:g}) | ranks (limit {RANKS_LIMIT:g}) | agrees |",
        "|---|---|---|---|---|---|",
        *(_row(finding) for finding in report.findings if finding.outcome),
    ]
    failed = [f"- {finding.case}: {_last_line(finding.error)}" for finding in report.findings if finding.outcome is None]
    sections = [head, "\n".join(made_by), "\n".join(table)]
    return "\n\n".join([*sections, *(["Not compared:\n\n" + "\n".join(failed)] if failed else [])])


def row_words(finding: Finding) -> list[str]:
    """Return the cells of a case's row: for the table, and for a line on the terminal."""
    if finding.outcome is None:
        return [finding.case, "", "", "", "", f"not compared: {_last_line(finding.error)}"]
    found = finding.outcome
    different = f"{found.weights.different} (by {found.weights.worst:.1e})" if found.weights.different else "0"
    ranks = ", ".join(f"{count}: {error:.1e}" for count, error in found.ranks.items())
    agrees = "yes" if found.agrees else f"known: {finding.known}" if finding.fine else "**no**"
    return [finding.case, str(found.weights.matrices), different, f"{found.logits:.1e}", ranks, agrees]


def _row(finding: Finding) -> str:
    return f"| {' | '.join(row_words(finding))} |"


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no reason given"
