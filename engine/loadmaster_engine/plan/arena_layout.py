"""Where parameters lie in a rank's arena: model order, 64-byte aligned, nothing else in between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from loadmaster_engine.plan.parameters import LocalTensor
from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.plan import Binding, FileView

ALIGNMENT = 64
"""Bytes. One cache line, and more than any element type needs."""


def lay_out(
    tensors: Iterable[LocalTensor], ties: Mapping[str, str], views: Mapping[str, FileView]
) -> tuple[tuple[Binding, ...], int]:
    """Return the bindings of one rank and the exact size of its arena in bytes.

    Ties share their target's storage. Parameters with one of `views` lie in a file and take no part of the arena.

    Raises PlanError where a tied pair is not split alike.
    """
    bindings: dict[str, Binding] = {}
    aliases: list[tuple[LocalTensor, str]] = []
    end = 0
    for tensor in tensors:
        if tensor.name in ties:
            aliases.append((tensor, ties[tensor.name]))
            continue
        if tensor.name in views:
            bindings[tensor.name] = _binding(tensor, 0, view=views[tensor.name])
            continue
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        bindings[tensor.name] = _binding(tensor, offset)
        end = offset + tensor.nbytes
    for tensor, target in aliases:
        if tensor.shape != bindings[target].shape:
            raise PlanError(
                "LM-PLAN-TIE",
                "tied parameters are split in different ways",
                where={"parameter": tensor.name, "tied to": target},
                why=f"shapes on one rank: {list(tensor.shape)} and {list(bindings[target].shape)}",
                hints=["use --tp 1"],
            )
        shared = bindings[target]
        bindings[tensor.name] = _binding(tensor, shared.offset, alias_of=target, view=shared.view)
    return tuple(bindings.values()), end


def _binding(tensor: LocalTensor, offset: int, alias_of: str = "", view: FileView | None = None) -> Binding:
    return Binding(
        parameter=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        offset=offset,
        nbytes=tensor.nbytes,
        role=tensor.role,
        alias_of=alias_of,
        view=view,
    )
