"""An answer's text as its tokens come in: characters only when they are complete, and nothing of a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from loadmaster_hookspecs.models import Tokenizer

UNFINISHED: Final = "\ufffd"
"""What tokenizers give for bytes that are no character, or not yet."""

PATIENCE: Final = 8
"""Tokens after which bytes that never became a character are let through: four bytes make the longest one."""


class Detokeniser:
    """Turns ids into text piece by piece. The pieces together are what decoding all ids at once gives.

    Every piece is the difference between two decodings that begin a few tokens earlier, because a token's text may depend on
    the one before it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._begin = 0
        self._told = 0

    def add(self, token: int) -> str:
        """Return the text that a token completes, empty while a character is unfinished."""
        self._ids.append(token)
        return self._advance(patient=len(self._ids) - self._told < PATIENCE)

    def rest(self) -> str:
        """Return what is left at the end, unfinished or not."""
        return self._advance(patient=False)

    def _advance(self, *, patient: bool) -> str:
        before = self._tokenizer.decode(self._ids[self._begin : self._told])
        after = self._tokenizer.decode(self._ids[self._begin :])
        if len(after) <= len(before) or (patient and after.endswith(UNFINISHED)):
            return ""
        self._begin, self._told = self._told, len(self._ids)
        return after[len(before) :]


class StopTexts:
    """Holds back what may become a stop text, and ends the text before one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def add(self, piece: str) -> str:
        """Return the text that is certain after another piece. Sets `found` when a stop text is complete."""
        if not self._stops:
            return piece
        text = self._held + piece
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        kept = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """Return what was held back, at the end of an answer without a stop text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `stop`."""
    return next((length for length in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:length])), 0)
