"""A request's hold on an adapter: as long as it lasts, the adapter stays on the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


class Use:
    """`number` is what rows name the adapter by, `key` what tells contents computed with it from all others.

    `check`, in a turn, raises UsageError LM-USAGE-ADAPTER when the ranks lost the adapter meanwhile.
    """

    def __init__(
        self,
        number: int = 0,
        key: str = "",
        end: Callable[[], None] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.key = key
        self.check = check
        self._end = end

    def release(self) -> None:
        """End the hold. Safe to call twice, by the thread that called it first."""
        end, self._end = self._end, None
        if end is not None:
            end()


BASE: Final = Use()
"""The base model, which needs no hold."""
