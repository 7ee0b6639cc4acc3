"""How many heads an attention module has, and which units its projections are cut in.

Head counts are read from the module and not from the model's configuration, because layers of one model may differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from loadmaster_hookspecs.models import ModelOutline
from loadmaster_hookspecs.sharding import Unit

if TYPE_CHECKING:
    import torch

KEY_VALUE: Final = frozenset({"k_proj", "v_proj"})
OUTPUT: Final = frozenset({"o_proj", "out_proj", "dense"})
FUSED: Final = frozenset({"qkv_proj", "query_key_value"})
"""Projections that hold query, key and value rows of one head after the other; they can be cut where each head has its own."""

NORMS: Final = frozenset({"q_norm", "k_norm"})

QUERY_COUNTS: Final = ("num_heads", "num_attention_heads", "n_heads", "n_head")
KEY_COUNTS: Final = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
"""Attributes in which modelling code keeps head counts."""


class Heads(NamedTuple):
    """Query heads and key-value heads of one attention module."""

    queries: int
    keys: int

    @property
    def ratio(self) -> int:
        """Query heads that share one key-value head."""
        return self.queries // self.keys


def is_attention(module: torch.nn.Module) -> bool:
    """Return whether a module is an attention block, by the names that transformers gives them."""
    return any(kind in type(module).__name__ for kind in ("Attention", "MLA"))


def heads_of(module: torch.nn.Module, outline: ModelOutline) -> Heads:
    """Return the head counts of an attention module on the meta device, undivided."""
    blocks = _size(module, "mp_num")
    if blocks:
        # The fused projection holds this many blocks, each with the rows of its own heads: they stay whole, as heads do.
        return Heads(blocks, blocks)
    children = dict(module.named_children())
    head_dim = _size(module, "head_dim") or outline.head_dim
    output = next((children[name] for name in children if name in OUTPUT), None)
    keys = _size(children.get("k_proj"), "out_features") // head_dim
    groups = _size(module, "num_key_value_groups")
    counted = next((count for name in QUERY_COUNTS if (count := _size(module, name))), 0)
    if not keys:
        queries = counted or outline.query_heads
        return Heads(queries, outline.kv_heads if children.keys() & FUSED else queries)
    return Heads(keys * groups if groups else _size(output, "in_features") // head_dim or counted, keys)


def head_unit(name: str, side: str, size: int, heads: Heads) -> Unit | None:
    """Return the unit in which one side of projection `name` with `size` elements is cut, or None where heads do not fit.

    Only the output projection takes its input from heads; another one would see a part of what it needs.
    """
    if (name in FUSED and heads.ratio != 1) or (side == "in" and name not in OUTPUT):
        return None
    kind, count = ("kv_heads", heads.keys) if name in KEY_VALUE else ("query_heads", heads.queries)
    if size % count or heads.queries % heads.keys:
        return None
    if kind == "kv_heads":
        return Unit(size=size // count, count=count, kind="kv_heads", ratio=heads.ratio)
    return Unit(size=size // count, count=count, kind="query_heads", ratio=heads.ratio)


def norm_unit(name: str, shape: tuple[int, ...], heads: Heads) -> Unit | None:
    """Return the unit in which a norm with one row per head is cut, or None for a norm that all heads share."""
    keys = name.startswith("k")
    count = heads.keys if keys else heads.queries
    if len(shape) > 1 and shape[0] == count:
        return Unit(count=count, kind="kv_heads" if keys else "query_heads", ratio=heads.ratio)
    return None


def _size(module: torch.nn.Module | None, name: str) -> int:
    value = getattr(module, name, 0)
    return value if isinstance(value, int) else 0
