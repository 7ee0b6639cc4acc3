"""A hand-written plan of an adapter, without parts: names and sizes are all that the host looks at."""

from __future__ import annotations

from loadmaster_hookspecs.plan import AdapterPlan, Ledger, RankPlan


def sample_adapter(name: str = "mine", sizes: tuple[int, ...] = (50, 50)) -> AdapterPlan:
    """Return the plan of an adapter that takes `sizes` bytes on the ranks."""
    return AdapterPlan(
        name=name,
        kind="lora",
        source=f"/adapters/{name}",
        format="hf-safetensors",
        fingerprint="",
        summary="",
        files=(),
        parts=(),
        replacements=(),
        ranks=tuple(RankPlan(rank=rank, bytes=size, reads=(), fills=(), bindings=()) for rank, size in enumerate(sizes)),
        ledger=Ledger(parameters=0, tensors=0, bytes_unique=0, bytes_total=0, used={}),
    )
