"""From styles to placements: what each rank owns of a module, and how the ranks' results become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.findings import Finding
from loadmaster_hookspecs.models import ModelOutline, ModuleSpec
from loadmaster_hookspecs.sharding import CollectiveIn, CollectiveOut, Placement, Topology, Unit
from loadmaster_plugins.tensor_parallel.cuts import cut_axis

Style = tuple[str, CollectiveIn, CollectiveOut]
"""The side that is cut (`out`, `in` or whatever has a unit), and what happens to input and output."""

STYLES: Final[dict[str, Style]] = {
    "colwise": ("out", "", ""),
    "colwise_gather_output": ("out", "", "concat"),
    "packed_colwise": ("out", "", ""),
    "rowwise": ("in", "", "sum"),
    "rowwise_split_input": ("in", "slice", "sum"),
    "embedding_rowwise": ("out", "shift_ids", "sum"),
    "moe_tp_experts": ("", "", "sum"),
    "local_params": ("", "", ""),
}
"""The split styles of transformers' tensor-parallel plans. Those without a side concern modules whose parameters are cut in
different ways: every axis that has a unit is cut."""

WHOLE: Final = frozenset({"replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj"})
"""Styles under which every rank holds the whole module; gradients do not concern a loader."""


class TensorParallel:
    """Cuts the matrices of every layer over all ranks."""

    name = "tensor-parallel"

    def check(self, outline: ModelOutline, topology: Topology) -> Sequence[Finding]:
        """Refuse sizes that leave a rank without a query head, or unequal where equal ranks are asked for."""
        heads, world = outline.query_heads, topology.tensor_parallel
        widest = min((heads, *outline.widths.values()))
        works = [size for size in range(1, widest + 1) if not topology.equal or heads % size == 0]
        if world in works:
            return []
        narrow = [f"{name} {width}" for name, width in outline.widths.items() if width < world <= heads]
        message = (
            f"{narrow[0]} has fewer elements than there are ranks ({world})"
            if narrow
            else f"{heads} query heads ({outline.kv_heads} key-value heads) cannot be divided "
            f"{'equally ' if topology.equal else ''}over {world} ranks"
        )
        fix = f"tensor parallel sizes that work: {', '.join(map(str, works))}"
        if topology.equal and world <= widest:
            fix += "; or allow uneven ranks, which work at any size up to the number of query heads"
        where = f"{outline.architecture} attention"
        return [Finding(level="error", code="LM-PLAN-HEADS", where=where, message=message, fix=fix)]

    def place(self, module: ModuleSpec, units: Mapping[str, Unit], topology: Topology, rank: int) -> Placement:
        """Return what `rank` owns of `module` by the module's style."""
        if topology.tensor_parallel == 1 or module.style in WHOLE:
            return Placement()
        if module.style not in STYLES:
            raise PlanError(
                "LM-PLAN-STYLE",
                f"the model asks for a split that is not supported: {module.style}",
                where={"module": module.path},
                hints=["use --tp 1", f"supported styles: {', '.join(sorted(STYLES))}"],
            )
        side, collective_in, collective_out = STYLES[module.style]
        axes = [_axis(module, side)] if side else list(units)
        for axis in axes:
            if axis not in units:
                raise PlanError(
                    "LM-PLAN-UNITS",
                    "a module that must be cut has no unit to cut it by",
                    where={"module": module.path, "axis": axis},
                )
            if units[axis].kind == "query_heads" and units[axis].count < topology.tensor_parallel:
                raise PlanError(
                    "LM-PLAN-HEADS",
                    f"{units[axis].count} query heads cannot be divided over {topology.tensor_parallel} ranks",
                    where={"module": module.path},
                    hints=[f"use a tensor parallel size of at most {units[axis].count}"],
                )
        cuts = {axis: cut_axis(units[axis], module.axes[axis], topology)[rank] for axis in axes}
        return Placement(
            owns={axis: cut.intervals for axis, cut in cuts.items()},
            padding={axis: cut.padding for axis, cut in cuts.items() if cut.padding},
            zeros=_contributed_once(module, cuts) if collective_out == "sum" and rank > 0 else (),
            collective_in=collective_in,
            collective_out=collective_out,
            total=module.axes[axes[0]] if collective_out == "concat" else 0,
        )


def _axis(module: ModuleSpec, side: str) -> str:
    """Return the axis that a style cuts; the rows of an embedding and of the output head are the vocabulary."""
    return "vocab" if side == "out" and "vocab" in module.axes else side


def _contributed_once(module: ModuleSpec, cut: Iterable[str]) -> tuple[str, ...]:
    """Return the tensors that every rank would add in full to a summed result, such as a bias."""
    axes = set(cut)
    return tuple(
        tensor.name for tensor in module.tensors if not tensor.factor and not any(dim.axis in axes for dim in tensor.dims)
    )
