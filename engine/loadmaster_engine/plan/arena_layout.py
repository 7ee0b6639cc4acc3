"""Where parameters lie in a rank's arena: model order, 64-byte aligned, nothing else in between; staged ones behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from mmap import PAGESIZE
from typing import NamedTuple

from loadmaster_engine.plan.parameters import LocalTensor
from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.plan import Binding, FileView

ALIGNMENT = 64
"""Bytes. One cache line, and more than any element type needs."""


class Layout(NamedTuple):
    """The bindings of one rank, the exact bytes of its arena, and the bytes behind it that are given back after the load."""

    bindings: tuple[Binding, ...]
    nbytes: int
    staging: int


def lay_out(tensors: Iterable[LocalTensor], ties: Mapping[str, str], views: Mapping[str, FileView]) -> Layout:
    """Return where everything of one rank lies.

    Ties share their target's storage. Parameters with one of `views` lie in a file and take no part of the arena. Staged ones
    begin on a page of their own, so that whole pages can be given back.

    Raises PlanError where a tied pair is not split alike.
    """
    bindings: dict[str, Binding] = {}
    aliases: list[tuple[LocalTensor, str]] = []
    staged: list[LocalTensor] = []
    end = 0
    for tensor in tensors:
        if tensor.name in ties:
            aliases.append((tensor, ties[tensor.name]))
        elif tensor.layout.staged:
            staged.append(tensor)
        elif tensor.name in views:
            bindings[tensor.name] = _binding(tensor, 0, view=views[tensor.name])
        else:
            offset = _aligned(end, ALIGNMENT)
            bindings[tensor.name] = _binding(tensor, offset)
            end = offset + tensor.nbytes
    top = _aligned(end, PAGESIZE) if staged else end
    for tensor in staged:
        offset = _aligned(top, ALIGNMENT)
        bindings[tensor.name] = _binding(tensor, offset)
        top = offset + tensor.nbytes
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
    return Layout(tuple(bindings.values()), end, top - end)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


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
        computed=tensor.layout.computed,
        staged=tensor.layout.staged,
    )
