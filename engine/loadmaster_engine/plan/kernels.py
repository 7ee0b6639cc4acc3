"""Which kernel multiplies with each quantised matrix, and what that does to the matrix's tensors in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from loadmaster_engine.plan.packing import Packing
from loadmaster_engine.plan.quantizer_results import checked_kernel_layouts
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.layout import TensorLayout
from loadmaster_hookspecs.models import ModuleSpec
from loadmaster_hookspecs.plan import PlanSettings
from loadmaster_hookspecs.quantization import MatrixFacts, MatrixKernel, PackedMatrix, Suitability
from loadmaster_hookspecs.sharding import Interval, ModulePlacement, Placement

AUTO = "auto"

AT_ONCE = 4
"""Matrices that are prepared at the same time, at most: what each of them takes up meanwhile is part of the plan."""

CONSTANT_AXES = {"one": 1, "pair": 2}
"""Sizes of the axes that a kernel may give to computed tensors beside those of the matrix."""


class Chosen(NamedTuple):
    """The modules with the tensors that kernels want to have in memory, and every rank's part of every matrix."""

    modules: tuple[ModuleSpec, ...]
    packed: tuple[tuple[PackedMatrix, ...], ...]


def choose_kernels(
    host: PluginHost,
    modules: Sequence[ModuleSpec],
    packings: Sequence[Packing],
    placements: Sequence[Sequence[ModulePlacement]],
    settings: PlanSettings,
    dtype: str,
) -> Chosen:
    """Choose for every matrix the kernel that suits its parts on all ranks best, or the one that was asked for.

    Raises PlanError LM-QUANT-KERNEL with every kernel's reason when none suits.
    """
    numbers = {module.path: number for number, module in enumerate(modules)}
    changed = list(modules)
    packed: list[list[PackedMatrix]] = [[] for _ in placements]
    candidates = _candidates(host, settings.kernel)
    for packing in packings:
        number = numbers[packing.module]
        parts = [_part(packing, changed[number], rank[number].placement) for rank in placements]
        facts = [facts_of(part, settings.device, dtype) for part in parts]
        kernel = _best(host, candidates, packing, facts)
        with host.attributed(kernel, f"layouts of kernel {kernel.name} for {packing.path}"):
            layouts = checked_kernel_layouts(kernel.layouts(packing.layouts, facts[0]), packing.layouts, _axes(packing))
        changed[number] = _with_layouts(changed[number], packing, layouts)
        for row, part in zip(packed, parts, strict=True):
            row.append(msgspec.structs.replace(part, kernel=kernel.name))
    return Chosen(tuple(changed), tuple(map(tuple, packed)))


def _axes(packing: Packing) -> set[str]:
    """Return the axes that computed tensors may have."""
    return {"out", "in", *CONSTANT_AXES, *(dim.axis for layout in packing.layouts for dim in layout.dims)}


def _candidates(host: PluginHost, wanted: str) -> Mapping[str, MatrixKernel]:
    return host.kernels() if wanted == AUTO else {wanted: host.kernel(wanted)}


def _part(packing: Packing, module: ModuleSpec, placement: Placement) -> PackedMatrix:
    """Return one rank's part of a matrix, without a kernel yet."""
    claim = packing.claimed.claim
    size = module.axes
    return PackedMatrix(
        path=packing.path,
        quantizer=packing.claimed.quantizer,
        kernel="",
        params=claim.params,
        bits=claim.bits,
        group_size=claim.group_size,
        dtype=claim.dtype,
        out=placement.owns.get(packing.out_axis, (Interval(0, size[packing.out_axis]),)),
        inner=placement.owns.get(packing.in_axis, (Interval(0, size[packing.in_axis]),)),
        rows=placement.size(packing.out_axis, size[packing.out_axis]),
        columns=placement.size(packing.in_axis, size[packing.in_axis]),
        layouts=packing.layouts,
        count=placement.size(packing.lead[0].axis, size[packing.lead[0].axis]) if packing.lead else 0,
        segments=packing.segments,
    )


def facts_of(part: PackedMatrix, device: str, dtype: str) -> MatrixFacts:
    """Return what kernels are told about one rank's part of a matrix."""
    group = part.group_size
    whole = sum(interval.size for interval in part.inner) == part.columns and not part.segments
    return MatrixFacts(
        quantizer=part.quantizer,
        bits=part.bits,
        group_size=group,
        rows=part.rows,
        columns=part.columns,
        aligned=bool(group) and whole and all(not (side.start % group or side.stop % group) for side in part.inner),
        stacked=part.count > 0,
        dtype=dtype,
        device=device,
    )


def _best(
    host: PluginHost, candidates: Mapping[str, MatrixKernel], packing: Packing, facts: Sequence[MatrixFacts]
) -> MatrixKernel:
    """Return the kernel whose worst judgement over the ranks is best; of equal ones the first by name."""
    judged: dict[str, Suitability] = {}
    for name, kernel in candidates.items():
        with host.attributed(kernel, f"judge of kernel {name} for {packing.path}"):
            judged[name] = min((kernel.judge(each) for each in facts), key=lambda judgement: judgement.score)
    suitable = [name for name, judgement in judged.items() if judgement.suits]
    if not suitable:
        raise PlanError(
            "LM-QUANT-KERNEL",
            "no kernel can multiply with a quantised matrix",
            where={"module": packing.path},
            why="; ".join(f"{name}: {judgement.reason}" for name, judgement in judged.items()) or "none is installed",
            hints=["use --kernel auto"],
        )
    return candidates[max(suitable, key=lambda name: judged[name].score)]


def _with_layouts(module: ModuleSpec, packing: Packing, layouts: Sequence[TensorLayout]) -> ModuleSpec:
    """Return the module with the tensors of one matrix as a kernel wants them."""
    own = {packing.prefix + layout.name for layout in packing.layouts}
    wanted = [packing.in_model(layout) for layout in layouts]
    constants = {packing.axis(name): size for name, size in CONSTANT_AXES.items()}
    used = {dim.axis for layout in wanted for dim in layout.dims}
    axes = module.axes | {axis: size for axis, size in constants.items() if axis in used}
    others = [tensor for tensor in module.tensors if tensor.name not in own]
    return msgspec.structs.replace(module, tensors=(*wanted, *others), axes=axes)
