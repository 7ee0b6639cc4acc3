"""Findings and ignored items as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster_hookspecs.findings import Finding, Ignored


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Return one line per finding, errors first, and what to do about it on the next line."""
    order = {"error": 0, "warning": 1, "info": 2}
    lines = []
    for finding in sorted(findings, key=lambda item: order[item.level]):
        place = f"{finding.where}: " if finding.where else ""
        lines.append(f"{finding.level:<8} {place}{finding.message}  [{finding.code}]")
        if finding.fix:
            lines.append(f"         try {finding.fix}")
    return lines


def ignored_text(ignored: Sequence[Ignored]) -> str:
    """Return `0 ignored`, or the number per reason with the first names: `2 ignored: optimizer.pt, ... (not weights)`."""
    if not ignored:
        return "0 ignored"
    by_reason: dict[str, list[str]] = {}
    for item in ignored:
        by_reason.setdefault(item.reason, []).append(item.name)
    parts = [f"{_names(names)} ({reason})" for reason, names in by_reason.items()]
    return f"{len(ignored)} ignored: " + "; ".join(parts)


def _names(names: Sequence[str], limit: int = 3) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
