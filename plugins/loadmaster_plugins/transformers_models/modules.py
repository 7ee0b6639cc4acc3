"""From a module tree on the meta device to module specifications: axes, styles, and the units that a split must respect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from loadmaster_hookspecs.dtypes import BY_TORCH_NAME
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import ModelOutline, ModuleKind, ModuleSpec
from loadmaster_hookspecs.sharding import Unit
from loadmaster_plugins.transformers_models.heads import NORMS, Heads, head_unit, heads_of, is_attention, norm_unit

if TYPE_CHECKING:
    import torch

SIDES: Final = {
    "colwise": "out",
    "colwise_gather_output": "out",
    "packed_colwise": "out",
    "rowwise": "in",
    "rowwise_split_input": "in",
    "packed_rowwise": "in",
}
"""The side of a matrix that a style of transformers' tensor-parallel plans cuts: its rows (`out`) or its columns (`in`)."""

PACKED: Final = frozenset({"packed_colwise", "packed_rowwise"})
"""Styles of matrices that hold two of the same size, gate and up, which are cut alike."""

HALVES: Final = 2
JOINED: Final = frozenset({"colwise_gather_output", "rowwise_split_input"})
"""Styles under which modelling code sees whole tensors, so that a cut need not respect heads."""

UNCUT: Final = frozenset({"replicate", "replicated_with_grad_allreduce"})
"""Styles under which a module stays whole."""

OWN_PARAMETERS: Final = "local_params"
"""The style of a module some of whose own parameters are cut while it needs no communication."""


class Scene(NamedTuple):
    """The module tree and what its authors say about splitting it."""

    model: torch.nn.Module
    styles: list[tuple[re.Pattern[str], str]]
    outline: ModelOutline

    def style(self, path: str) -> str:
        """Return the style that the plan gives a module or parameter, or an empty string."""
        return next((style for pattern, style in self.styles if pattern.fullmatch(path)), "")

    def width(self, path: str) -> int:
        """Return the rows of a linear module's weight."""
        return int(self.model.get_parameter(f"{path}.weight").shape[0])

    def heads(self, path: str) -> Heads | None:
        """Return the head counts of a module, or None when it is no attention block."""
        module = self.model.get_submodule(path)
        return heads_of(module, self.outline) if is_attention(module) else None


def module_specs(
    model: torch.nn.Module, tp_plan: Mapping[str, str], outline: ModelOutline, persistent: Mapping[str, str]
) -> Iterator[ModuleSpec]:
    """Yield a specification for every module that owns tensors or has a style, in the order in which the model holds them.

    `persistent` maps the names of buffers that belong to the checkpoint to their element types.
    """
    scene = Scene(model, [(_pattern(name), style) for name, style in tp_plan.items()], outline)
    for path, module in model.named_modules():
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters(recurse=False)}
        kept = {name.rpartition(".")[2]: dtype for name, dtype in persistent.items() if name.rpartition(".")[0] == path}
        shapes |= {name: tuple(module.get_buffer(name).shape) for name in kept}
        if not shapes:
            if style := scene.style(path):
                yield ModuleSpec(path=path, kind="other", style=style, axes={}, tensors=())
            continue
        cut = {name: style for name in shapes if (style := scene.style(f"{path}.{name}"))}
        yield _composite(scene, path, shapes, kept, cut) if cut else _single(scene, path, _kind(module), shapes, kept)


def float_buffers(model: torch.nn.Module) -> dict[str, str]:
    """Return the buffers that the checkpoint holds, with the element type each keeps whatever the model's own is."""
    names = set(model.state_dict())
    return {
        name: BY_TORCH_NAME[str(buffer.dtype).removeprefix("torch.")] for name, buffer in model.named_buffers() if name in names
    }


def _single(
    scene: Scene, path: str, kind: ModuleKind, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]
) -> ModuleSpec:
    """Specify a module with one matrix, or with parameters that nobody cuts."""
    names = _axis_names(path, kind, scene.outline, shapes.get("weight", ()))
    dims = {name: _dims(name, shape, names) for name, shape in shapes.items()}
    axes = {axis: size for name, shape in shapes.items() for axis, size in zip(dims[name], shape, strict=True)}
    style = scene.style(path) or "replicate"
    units: dict[str, Unit] = {}
    domains: dict[str, str] = {}
    side = SIDES.get(style, "")
    parent, _, name = path.rpartition(".")
    if name in NORMS and scene.style(f"{parent}.{name[0]}_proj") == "colwise":
        style, units = _norm(name, style, shapes["weight"], scene.heads(parent), scene.width(f"{parent}.{name[0]}_proj"))
        domains = {axis: _domain(path, unit) for axis, unit in units.items()}
    elif style not in UNCUT and not shapes.keys() <= {"weight", "bias"}:
        style = f"{style} of a module with parameters that are neither weight nor bias"
    elif "vocab" in axes:
        units, domains = {"vocab": Unit(count=axes["vocab"], kind="vocab")}, {"vocab": "vocab"}
    elif kind == "linear" and side in axes:
        heads = scene.heads(parent) if style not in JOINED else None
        unit = _unit(name, axes[side], style, heads)
        if unit is None:
            style = f"{style} of a matrix that does not consist of heads"
        else:
            units, domains = {side: unit}, {side: _domain(parent, unit)}
    return ModuleSpec(
        path=path, kind=kind, style=style, axes=axes, tensors=_layouts(dims, dtypes), units=units, domains=domains
    )


def _composite(
    scene: Scene, path: str, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str], styles: Mapping[str, str]
) -> ModuleSpec:
    """Specify a module whose parameters have styles of their own: stacked experts, or attention with sinks."""
    heads = scene.heads(path)
    dims: dict[str, tuple[str, ...]] = {}
    axes: dict[str, int] = {}
    units: dict[str, Unit] = {}
    for name, shape in shapes.items():
        dims[name] = tuple(f"{name}{dim}" for dim in range(len(shape)))
        axes |= dict(zip(dims[name], shape, strict=True))
        side = SIDES.get(styles.get(name, ""))
        if side is None or (side == "in" and len(shape) == 1):
            continue
        dim = max(len(shape) - 2, 0) if side == "out" else len(shape) - 1
        unit = _unit(name, shape[dim], styles[name], heads)
        if unit is not None:
            units[dims[name][dim]] = unit
    unknown = [style for name, style in styles.items() if not any(axis in units for axis in dims[name])]
    if len({unit.count * unit.size for unit in units.values()}) > 1:
        unknown.append("parts of different widths in one module")
    return ModuleSpec(
        path=path,
        kind="other" if heads else "experts",
        style=unknown[0] if unknown else scene.style(path) or OWN_PARAMETERS,
        axes=axes,
        tensors=_layouts(dims, dtypes),
        units=units,
        domains={axis: _domain(path, unit) for axis, unit in units.items()},
    )


def _norm(name: str, style: str, shape: tuple[int, ...], heads: Heads | None, width: int) -> tuple[str, dict[str, Unit]]:
    """Return style and units of a norm of queries or keys that are divided: some have one row per head."""
    unit = norm_unit(name, shape, heads) if heads else None
    if unit is not None:
        return OWN_PARAMETERS, {"weight0": unit}
    whole = heads is None or (shape == (width,) and 1 not in heads)
    return ("norm over all heads of a projection that is divided" if whole else style), {}


def _unit(name: str, size: int, style: str, heads: Heads | None) -> Unit | None:
    """Return what must stay whole of `size` elements, or None where nothing sensible can."""
    if style in PACKED:
        return Unit(count=size // HALVES, segments=HALVES) if size % HALVES == 0 and heads is None else None
    return Unit(count=size) if heads is None else head_unit(name, SIDES[style], size, heads)


def _domain(parent: str, unit: Unit) -> str:
    """Return the name of the group of axes that are cut at the same places."""
    return f"{parent}:{unit.kind}:{unit.size}x{unit.count}"


def _layouts(dims: Mapping[str, tuple[str, ...]], dtypes: Mapping[str, str]) -> tuple[TensorLayout, ...]:
    return tuple(
        TensorLayout(name=name, dims=tuple(AxisMap(axis=axis) for axis in axes), dtype=dtypes.get(name, ""))
        for name, axes in dims.items()
    )


def _axis_names(path: str, kind: ModuleKind, outline: ModelOutline, weight: tuple[int, ...]) -> tuple[str, ...]:
    """Return the logical axes of a module's weight. The output head's rows are the vocabulary, as the embedding's are."""
    if kind == "embedding":
        return ("vocab", "hidden") if weight[:1] == (outline.vocab_size,) else ("rows", "hidden")
    if kind == "linear":
        head = "." not in path and weight[:1] == (outline.vocab_size,)
        return ("vocab" if head else "out", "in")
    return ()


def _dims(name: str, shape: tuple[int, ...], weight_axes: tuple[str, ...]) -> tuple[str, ...]:
    if weight_axes and name == "weight":
        return weight_axes
    if weight_axes and name == "bias":
        return weight_axes[:1]
    return tuple(f"{name}{dim}" for dim in range(len(shape)))


def _kind(module: torch.nn.Module) -> ModuleKind:
    import torch

    if isinstance(module, torch.nn.Linear):
        return "linear"
    return "embedding" if isinstance(module, torch.nn.Embedding) else "other"


def _pattern(name: str) -> re.Pattern[str]:
    """Return the expression for a plan entry, where `*` stands for one layer or expert number."""
    return re.compile(re.escape(name).replace(r"\*", r"\d+"))
