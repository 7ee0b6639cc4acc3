"""From a module tree on the meta device to module specifications: axes, styles, and the units that a split must respect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from loadmaster_hookspecs.dtypes import BY_TORCH_NAME
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_hookspecs.models import ModelOutline, ModuleKind, ModuleSpec
from loadmaster_hookspecs.sharding import Unit

if TYPE_CHECKING:
    import torch

QUERY = frozenset({"q_proj", "o_proj", "out_proj", "dense"})
KEY_VALUE = frozenset({"k_proj", "v_proj"})
SPLIT_SIDE = {"colwise": "out", "colwise_gather_output": "out", "rowwise": "in", "rowwise_split_input": "in"}


def module_specs(
    model: torch.nn.Module, tp_plan: Mapping[str, str], outline: ModelOutline, persistent: Mapping[str, str]
) -> Iterator[ModuleSpec]:
    """Yield a specification for every module that owns tensors, in the order in which the model holds them.

    `persistent` maps the names of buffers that belong to the checkpoint to their element types.
    """
    styles = [(_pattern(name), style) for name, style in tp_plan.items()]
    for path, module in model.named_modules():
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters(recurse=False)}
        kept = {name.rpartition(".")[2]: dtype for name, dtype in persistent.items() if name.rpartition(".")[0] == path}
        shapes |= {name: tuple(module.get_buffer(name).shape) for name in kept}
        if shapes:
            style = next((style for pattern, style in styles if pattern.fullmatch(path)), "replicate")
            yield _specify(path, _kind(module), style, shapes, kept, outline)


def float_buffers(model: torch.nn.Module) -> dict[str, str]:
    """Return the buffers that the checkpoint holds, with the element type each keeps whatever the model's own is."""
    names = set(model.state_dict())
    return {
        name: BY_TORCH_NAME[str(buffer.dtype).removeprefix("torch.")] for name, buffer in model.named_buffers() if name in names
    }


def _specify(
    path: str,
    kind: ModuleKind,
    style: str,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    outline: ModelOutline,
) -> ModuleSpec:
    names = _axis_names(path, kind, outline, shapes.get("weight", ()))
    axes: dict[str, int] = {}
    tensors = []
    for name, shape in shapes.items():
        dims = _dims(name, shape, names)
        axes |= dict(zip(dims, shape, strict=True))
        tensors.append(TensorLayout(name=name, dims=tuple(AxisMap(axis=axis) for axis in dims), dtype=dtypes.get(name, "")))
    units, domains = _units(path, kind, style, axes, outline)
    return ModuleSpec(path=path, kind=kind, style=style, axes=axes, tensors=tuple(tensors), units=units, domains=domains)


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


def _units(
    path: str, kind: ModuleKind, style: str, axes: Mapping[str, int], outline: ModelOutline
) -> tuple[dict[str, Unit], dict[str, str]]:
    """Return the unit and the domain of the axis that the module's style cuts."""
    if "vocab" in axes:
        return {"vocab": Unit(count=axes["vocab"], kind="vocab")}, {"vocab": "vocab"}
    side = SPLIT_SIDE.get(style, "")
    if kind != "linear" or side not in axes:
        return {}, {}
    parent, _, name = path.rpartition(".")
    ratio = outline.query_heads // outline.kv_heads
    size = axes[side]
    if name in QUERY and size == outline.query_heads * outline.head_dim:
        unit = Unit(size=outline.head_dim, count=outline.query_heads, kind="query_heads", ratio=ratio)
        return {side: unit}, {side: f"{parent}:query"}
    if name in KEY_VALUE and size == outline.kv_heads * outline.head_dim:
        unit = Unit(size=outline.head_dim, count=outline.kv_heads, kind="kv_heads", ratio=ratio)
        return {side: unit}, {side: f"{parent}:kv"}
    return {side: Unit(count=size)}, {side: f"{parent}:{size}"}


def _kind(module: torch.nn.Module) -> ModuleKind:
    import torch

    if isinstance(module, torch.nn.Linear):
        return "linear"
    return "embedding" if isinstance(module, torch.nn.Embedding) else "other"


def _pattern(name: str) -> re.Pattern[str]:
    """Return the expression for a plan entry, where `*` stands for one layer or expert number."""
    return re.compile(re.escape(name).replace(r"\*", r"\d+"))
