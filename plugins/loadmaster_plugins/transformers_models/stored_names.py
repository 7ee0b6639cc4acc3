"""From the tensors in a file to the parameters of the model, by transformers' own renaming and conversion rules."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.findings import Ignored
from loadmaster_hookspecs.formats import TensorMeta
from loadmaster_hookspecs.models import Piece
from loadmaster_plugins.transformers_models.arrangement import Arranged, stored, transpose
from loadmaster_plugins.transformers_models.conversions import Scene, UnknownOperation, convert

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.core_model_loading import WeightConverter, WeightRenaming

COMPUTED: Final = re.compile(r"(^|\.)(rotary_emb\.(original_)?inv_freq|attn\.(bias|masked_bias)|position_ids)$")
"""Tensors that older saves contain although the model computes them from its configuration."""

NUMBERED: Final = re.compile(r"(.*?)([0-9]*)", re.DOTALL)
"""A part of a name, and the number at its end."""

EXPERTS: Final = 3
"""Dimensions of the parameters that hold all experts of a layer."""


class NameMap(NamedTuple):
    """What feeds each parameter, what is known to feed nothing, and what should feed something but does not."""

    sources: dict[str, tuple[Piece, ...]]
    ignored: tuple[Ignored, ...]
    unexpected: tuple[str, ...]


class Rules(NamedTuple):
    """transformers' rules for one model: those that only rename, and those that also rearrange."""

    renamings: list[WeightRenaming]
    converters: list[WeightConverter]


def map_names(model: PreTrainedModel, tensors: Mapping[str, TensorMeta]) -> NameMap:
    """Return the name map of a checkpoint for a model on the meta device.

    Raises PlanError when stored tensors must be rearranged in a way that is more than copying boxes.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if _as_built(tensors, shapes):
        return NameMap({name: (Piece(tensor=name),) for name in sorted(tensors, key=_natural)}, (), ())
    rules = _rules(model)
    sources: dict[str, tuple[Piece, ...]] = {}
    collected: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    ignored: list[Ignored] = []
    unexpected: list[str] = []
    for name in sorted(tensors, key=_natural):
        target, pattern = _target(model, name, rules, shapes)
        if target in shapes and pattern is not None:
            collected[target][pattern].append(name)
        elif target in shapes and target not in sources:
            sources[target] = _direct(name, tensors[name].shape, shapes[target])
        elif COMPUTED.search(name) or _expected(model, name):
            ignored.append(Ignored(name=name, reason="computed from the configuration"))
        else:
            unexpected.append(name)
    for target, patterns in collected.items():
        made = _converted(model, rules, target, patterns, tensors, shapes)
        sources |= {parameter: arranged.pieces() for parameter, arranged in made.items()}
    return NameMap(sources, tuple(ignored), tuple(unexpected))


def _as_built(tensors: Mapping[str, TensorMeta], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether every stored tensor is a parameter by name and shape, and the model has no stacked matrices.

    Then no rule applies, and transformers' rules for all of its models, which take a fifth of a second to make, are not needed.
    """
    return all(len(shape) < EXPERTS for shape in shapes.values()) and all(
        shapes.get(name) == tensor.shape for name, tensor in tensors.items()
    )


def _rules(model: PreTrainedModel) -> Rules:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    rules = get_model_conversion_mapping(model)
    return Rules(
        [rule for rule in rules if isinstance(rule, WeightRenaming)],
        [rule for rule in rules if isinstance(rule, WeightConverter)],
    )


def _target(model: PreTrainedModel, name: str, rules: Rules, shapes: dict[str, tuple[int, ...]]) -> tuple[str, str | None]:
    """Return the parameter that a stored tensor feeds, and the pattern of the conversion on the way, if there is one."""
    from transformers.core_model_loading import rename_source_key

    renamed, pattern = rename_source_key(name, rules.renamings, rules.converters, model.base_model_prefix, shapes)
    if renamed not in shapes and name in shapes:
        renamed, pattern = rename_source_key(name, [], [], model.base_model_prefix, shapes)
    return renamed, pattern


def _direct(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[Piece, ...]:
    """Return the piece of a tensor that is a parameter as it is, or all experts of a layer with each matrix transposed."""
    if len(wanted) == EXPERTS and shape != wanted and shape == (wanted[0], wanted[2], wanted[1]):
        return transpose(stored(name, shape), 1, 2).pieces()
    return (Piece(tensor=name),)


def _converted(
    model: PreTrainedModel,
    rules: Rules,
    target: str,
    patterns: Mapping[str, list[str]],
    tensors: Mapping[str, TensorMeta],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Arranged]:
    """Return the parameters that a conversion makes of the tensors collected for `target`."""
    by_pattern = {pattern: converter for converter in rules.converters for pattern in converter.source_patterns}
    converter = by_pattern[next(iter(patterns))]
    scene = Scene(converter.source_patterns, converter.target_patterns, target, shapes, model.config)
    collected = {pattern: [stored(name, tensors[name].shape) for name in names] for pattern, names in patterns.items()}
    first = next(iter(patterns.values()))[0]
    try:
        return convert(converter, target, collected, scene)
    except UnknownOperation as unknown:
        raise _refused(model, first, target, f"they need the operation {unknown}, which is more than copying") from unknown
    except ValueError as error:
        raise _refused(model, first, target, str(error)) from error


def _natural(name: str) -> list[tuple[str, int]]:
    """Return the key that sorts `experts.2` before `experts.10`: the order in which experts are stacked."""
    parts = [NUMBERED.fullmatch(part) for part in name.split(".")]
    return [(part[1], int(part[2] or -1)) for part in parts if part]


def _expected(model: PreTrainedModel, name: str) -> bool:
    """Return whether the model's own code says that this stored tensor may be left out."""
    patterns = model._keys_to_ignore_on_load_unexpected or ()
    return any(re.search(pattern, name) for pattern in patterns)


def _refused(model: PreTrainedModel, tensor: str, parameter: str, why: str) -> PlanError:
    return PlanError(
        "LM-MODEL-CONVERSION",
        f"{type(model).__name__} stores tensors in another arrangement than it computes with",
        where={"tensor": tensor, "parameter": parameter},
        why=why,
    )
