"""Remarks that do not stop a load by themselves: what was noticed, where, and what to do about it."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["error", "warning", "info"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One remark about a checkpoint, a plan or a machine.

    `where` is a file, tensor, module or setting; `fix` is what to do and may be empty. Findings of level `error` stop the
    load before anything is allocated.
    """

    level: Level
    code: str
    where: str
    message: str
    fix: str = ""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's answer to "is this yours?": a score between 0 and 1 and the evidence for it.

    The host takes the highest score. Two equal scores are an error that names both candidates, so registration order never
    decides.
    """

    score: float
    evidence: str


class Ignored(msgspec.Struct, frozen=True, kw_only=True):
    """A file or tensor that is left out on purpose, with the reason; `notable` ones are shown as a warning."""

    name: str
    reason: str
    notable: bool = False
