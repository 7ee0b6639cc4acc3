"""One pair of factors: are its tensors complete, do their shapes fit module and configuration, and what do they look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from loadmaster_hookspecs.adapters import AdapterModule, AdapterPart, StoredAdapter
from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_plugins.lora.settings import Settings
from loadmaster_plugins.peft_files.matching import wrong_shape

ROLES: Final[Mapping[str, str]] = {
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_B.bias": "B_bias",
    ".lora_embedding_A": "A",
    ".lora_embedding_B": "B",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
}
"""Ends of the names of stored tensors, and the part that these play."""

LAYOUTS: Final[Mapping[str, TensorLayout]] = {
    "A": TensorLayout(name="A", dims=(AxisMap(axis="rank"), AxisMap(axis="in")), dtype="F32", factor=True),
    "B": TensorLayout(name="B", dims=(AxisMap(axis="out"), AxisMap(axis="rank")), dtype="F32", factor=True),
    "B_bias": TensorLayout(name="B_bias", dims=(AxisMap(axis="out"),), dtype="F32"),
    "magnitude": TensorLayout(name="magnitude", dims=(AxisMap(axis="out"),), dtype="F32", factor=True),
}
"""The tensors of a pair by role. A bias is added once to a summed result; the factors and magnitudes multiply on every rank.

All are float32, as peft keeps them: processors multiply so few columns fastest so, and bfloat16 ones ten times slower.
"""


def make_part(
    settings: Settings, stored: StoredAdapter, key: str, module: AdapterModule, roles: Mapping[str, str]
) -> AdapterPart:
    """Return what a pair does to its module; `key` is what patterns are compared with, the module's name in the file.

    Raises IntegrityError for tensors that are missing, too many, or of another shape than configuration and module ask for.
    """
    wanted = ["A", "B"]
    if settings.config.lora_bias:
        wanted.append("B_bias")
    if settings.config.use_dora:
        wanted.append("magnitude")
    check_roles(stored, key, roles, wanted)
    rank = settings.rank(key)
    _check_shapes(stored, module, roles, rank)
    return AdapterPart(
        path=module.path,
        kind=module.kind,
        scale=settings.scale(key),
        axes={"rank": rank},
        tensors=dict(roles),
        layouts=tuple(LAYOUTS[role] for role in wanted),
        touches=("weight", "bias") if "B_bias" in wanted else ("weight",),
    )


def check_roles(stored: StoredAdapter, path: str, roles: Mapping[str, str], wanted: list[str]) -> None:
    """Raise IntegrityError where a pair lacks tensors, or has others than its configuration speaks of."""
    missing = [role for role in wanted if role not in roles]
    surplus = [tensor for role, tensor in roles.items() if role not in wanted]
    if missing or surplus:
        why = f"missing: {', '.join(missing)}" if missing else f"not spoken of in the configuration: {', '.join(surplus)}"
        raise IntegrityError(
            "LM-ADAPTER-MISSING" if missing else "LM-ADAPTER-TARGET",
            "a pair of the adapter is not what its configuration says",
            where={"adapter": stored.name, "module": path},
            why=why,
        )


def _check_shapes(stored: StoredAdapter, module: AdapterModule, roles: Mapping[str, str], rank: int) -> None:
    sizes = {"rank": rank, "in": module.in_features, "out": module.out_features}
    for role, tensor in roles.items():
        shape = stored.tensors[tensor].shape
        wanted = tuple(sizes[dim.axis] for dim in LAYOUTS[role].dims)
        if shape == wanted:
            continue
        side = 0 if role == "A" else 1
        ranks = f"tensor rank {shape[side]}, configured rank {rank}; " if role in ("A", "B") and len(shape) == 2 else ""
        raise wrong_shape(stored, tensor, module, wanted, ranks, "rank_pattern gives single modules another rank")
