"""What serving a planned model takes besides its weights, as one line of the plan."""

from __future__ import annotations

from loadmaster.display.units import size
from loadmaster.serving.fit import need_of
from loadmaster.serving.settings import EngineSettings
from loadmaster_hookspecs.plan import LoadPlan


def serving_line(plan: LoadPlan) -> str:
    """Return the bound on activations and the bytes of keys and values over all ranks, with the engine's own settings.

    Empty for models whose attention has no heads to keep keys of.
    """
    ranks, outline = len(plan.ranks), plan.outline
    if not outline.kv_heads * outline.head_dim * outline.num_layers:
        return ""
    need = need_of(plan, EngineSettings(), 0, ranks > 1, ranks)
    longest = outline.max_positions
    context = f", {size(longest * need.token)} for {longest} tokens" if longest else ""
    return f"activations up to {size(need.activation)}, keys and values {size(need.token)} a token{context}"
