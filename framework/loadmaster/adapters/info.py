"""What users are told of a loaded adapter."""

from __future__ import annotations

import msgspec


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that requests can name. `digest` is that of its files' contents, `nbytes` what it takes over all ranks.

    `summary` is its kind's: `LoRA, 216/216 pairs, scale 2 (r 8, alpha 16)`. `using` requests run with it or wait to.
    """

    name: str
    path: str
    kind: str
    digest: str
    summary: str
    nbytes: int
    pinned: bool = False
    using: int = 0
