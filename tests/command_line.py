"""What a call of the command line returned, for tests that make one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """Exit code and output of one call of the command line."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output; fails where there is anything else."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


Invoke = Callable[..., Outcome]
