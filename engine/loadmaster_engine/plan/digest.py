"""The plan's digest: the same wherever the same files are planned in the same way."""

from __future__ import annotations

import hashlib

import msgspec

from loadmaster_hookspecs.plan import LoadPlan

_ENCODER = msgspec.json.Encoder(order="deterministic")


def digest(plan: LoadPlan) -> str:
    """Return the SHA-256 over everything that decides the loaded bytes.

    Left out are the place the plan was made from, remarks, and what planning itself cost.
    """
    adapters = tuple(msgspec.structs.replace(adapter, source="") for adapter in plan.adapters)
    bare = msgspec.structs.replace(plan, source="", adapters=adapters, findings=(), bytes_read_to_plan=0, digest="")
    return hashlib.sha256(_ENCODER.encode(bare)).hexdigest()


def sealed(plan: LoadPlan) -> LoadPlan:
    """Return the plan with its digest filled in."""
    return msgspec.structs.replace(plan, digest=digest(plan))
