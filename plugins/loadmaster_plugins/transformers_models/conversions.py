"""transformers' weight conversions, carried out on arrangements instead of tensors.

A conversion is a chain of operations from the tensors a checkpoint stores to those a model computes with. Each operation here
gives the same result as the one of the same name in transformers; one that is more than arithmetic on boxes is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from loadmaster_plugins.transformers_models.arrangement import Arranged, join, split, stack, transpose

if TYPE_CHECKING:
    from transformers.core_model_loading import WeightConverter

Collected = dict[str, list[Arranged]]
"""Tensors by the pattern they were collected under, or that an earlier operation of the chain gave them."""


class Scene(NamedTuple):
    """What an operation may ask about the conversion it belongs to: its patterns, the parameter it feeds, and the model."""

    sources: Sequence[str]
    targets: Sequence[str]
    parameter: str
    shapes: Mapping[str, tuple[int, ...]]
    config: Any


class UnknownOperation(Exception):
    """An operation that is more than arithmetic on boxes. The argument is its name."""


def convert(converter: WeightConverter, parameter: str, collected: Collected, scene: Scene) -> dict[str, Arranged]:
    """Return the parameters that a conversion makes of the tensors collected for `parameter`.

    Raises UnknownOperation for an operation without arithmetic, ValueError for tensors whose shapes do not fit together.
    """
    for operation in converter.operations:
        name = type(operation).__name__
        if name not in OPERATIONS:
            raise UnknownOperation(name)
        collected = OPERATIONS[name](operation, collected, scene)
    full_name = parameter.replace("*.", "0.")
    pattern = next((key for key in collected if key in full_name), None)
    prefix, _, suffix = full_name.partition(pattern) if pattern is not None else ("", "", "")
    return {prefix + key + suffix: _only(tensors) for key, tensors in collected.items()}


def _merge(operation: Any, collected: Collected, scene: Scene) -> Collected:
    """Stack the tensors of every pattern, one per expert, along a new dimension."""
    single = len(collected) == 1
    return {scene.targets[0] if single else key: [stack(tensors, operation.dim)] for key, tensors in collected.items()}


def _concatenate(operation: Any, collected: Collected, scene: Scene) -> Collected:
    """Join everything in the order of the patterns."""
    tensors = [tensor for source in scene.sources for tensor in collected.get(source, ())]
    return {scene.targets[0]: [join(tensors, operation.dim)]}


def _chunk(operation: Any, collected: Collected, scene: Scene) -> Collected:
    """Cut one tensor into equal parts, one per target; the last one may be shorter."""
    targets = list(scene.targets)
    if operation.num_shards_attribute is not None:
        count = getattr(scene.config.get_text_config(), operation.num_shards_attribute)
        targets = [targets[0].replace("*", str(number)) for number in range(count)]
    tensor = _only(*collected.values())
    length = tensor.shape[operation.dim]
    size = -(-length // len(targets))
    sizes = [min(size, length - start) for start in range(0, length, size)]
    return {target: [part] for target, part in zip(targets, split(tensor, operation.dim, sizes), strict=True)}


def _split(operation: Any, collected: Collected, scene: Scene) -> Collected:
    """Cut one tensor into parts that have the sizes of the targets' parameters."""
    names = [scene.parameter.replace(scene.targets[0], target) for target in scene.targets]
    sizes = [scene.shapes[name][operation.dim] for name in names]
    parts = split(_only(*collected.values()), operation.dim, sizes)
    return {target: [part] for target, part in zip(scene.targets, parts, strict=True)}


def _transpose(operation: Any, collected: Collected, scene: Scene) -> Collected:
    """Exchange two dimensions; with `check_dims` only where the parameter has another shape than the tensor."""
    tensor = _only(*collected.values())
    key = scene.targets[0] if len(scene.targets) == 1 else scene.sources[0]
    if operation.check_dims and tensor.shape == scene.shapes.get(scene.parameter):
        return {key: [tensor]}
    return {key: [transpose(tensor, operation.dim0, operation.dim1)]}


def _only(tensors: Sequence[Arranged], *more: Sequence[Arranged]) -> Arranged:
    """Return the one tensor there is. Raises ValueError for several."""
    if len(tensors) != 1 or more:
        raise ValueError("several tensors are stored where one is expected")
    return tensors[0]


OPERATIONS: Final[dict[str, Callable[[Any, Collected, Scene], Collected]]] = {
    "MergeModulelist": _merge,
    "Concatenate": _concatenate,
    "Chunk": _chunk,
    "Split": _split,
    "Transpose": _transpose,
}
