"""Chooses among candidates by the evidence they give, never by the order they were registered in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from loadmaster.host.attribution import attributed
from loadmaster.host.families import Family
from loadmaster.host.registry import Provided, choices, wrong_result
from loadmaster_hookspecs import PluginError
from loadmaster_hookspecs.findings import Match

T = TypeVar("T")


def best(
    family: Family[T], candidates: Mapping[str, Provided[T]], method: str, ask: Callable[[T], Match | None], subject: str
) -> Provided[T] | None:
    """Return the candidate with the highest score, or None when no candidate claims the subject.

    Args:
        family: the family of the candidates.
        candidates: whom to ask, by key.
        method: the method that `ask` calls, for messages.
        ask: puts the question to one candidate; None and a score of 0 mean no.
        subject: what the candidates are asked about, for messages.

    Raises PluginError when the highest score is reached twice, or when a candidate fails or answers with something else.
    """
    answers = [(candidate, _answer(family, candidate, method, ask)) for candidate in candidates.values()]
    claims = [(candidate, match) for candidate, match in answers if match is not None and match.score > 0]
    top = max((match.score for _, match in claims), default=0.0)
    winners = [(candidate, match) for candidate, match in claims if match.score == top]
    if len(winners) > 1:
        raise _tie(family, winners, subject)
    return winners[0][0] if winners else None


def asked(candidates: Mapping[str, Provided[T]]) -> str:
    """Return who was asked, as a hint: `tried: toy by acme (acme-formats 1.0)`."""
    return f"tried: {', '.join(f'{each.key} by {each.plugin.label}' for each in candidates.values()) or 'none'}"


def _answer(family: Family[T], candidate: Provided[T], method: str, ask: Callable[[T], Match | None]) -> Match | None:
    call = f"{method} of {family.noun} {candidate.key}"
    with attributed(candidate.plugin, family.hook, call):
        match: object = ask(candidate.value)
    if match is None:
        return None
    if isinstance(match, Match) and isinstance(match.score, int | float) and 0.0 <= match.score <= 1.0:
        return match
    problem = f"answered {match!r} in {call}, which is neither None nor a Match with a score from 0 to 1"
    raise wrong_result(candidate.plugin, family.hook, problem)


def _tie(family: Family[T], winners: list[tuple[Provided[T], Match]], subject: str) -> PluginError:
    claims = [
        f"{candidate.key} by {candidate.plugin.label}: {match.score:.2f}, {match.evidence}" for candidate, match in winners
    ]
    return PluginError(
        "LM-PLUGIN-TIE",
        f"{len(winners)} {family.noun} candidates claim {subject} equally",
        where={"hook": family.hook},
        why="; ".join(claims),
        hints=choices([candidate.plugin for candidate, _ in winners]),
    )
