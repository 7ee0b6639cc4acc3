"""From the names in a file to the names in the model, by transformers' own renaming rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from loadmaster_hookspecs.errors import PlanError
from loadmaster_hookspecs.findings import Ignored
from loadmaster_hookspecs.models import Piece

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COMPUTED: Final = re.compile(r"(^|\.)(rotary_emb\.(original_)?inv_freq|attn\.(bias|masked_bias)|position_ids)$")
"""Tensors that older saves contain although the model computes them from its configuration."""


class NameMap(NamedTuple):
    """What feeds each parameter, what is known to feed nothing, and what should feed something but does not."""

    sources: dict[str, tuple[Piece, ...]]
    ignored: tuple[Ignored, ...]
    unexpected: tuple[str, ...]


def map_names(model: PreTrainedModel, stored: Iterable[str]) -> NameMap:
    """Return the name map of a checkpoint for a model on the meta device.

    Raises PlanError when a stored tensor needs more than a new name, which this family does not describe.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    state = model.state_dict()
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    sources: dict[str, tuple[Piece, ...]] = {}
    ignored: list[Ignored] = []
    unexpected: list[str] = []
    for name in stored:
        renamed, converted = rename_source_key(name, renamings, converters, model.base_model_prefix, state)
        if converted is not None and name not in state:
            raise _needs_conversion(model, name)
        target = name if converted is not None else renamed
        if target in state and target not in sources:
            sources[target] = (Piece(tensor=name),)
        elif COMPUTED.search(name) or _expected(model, name):
            ignored.append(Ignored(name=name, reason="computed from the configuration"))
        else:
            unexpected.append(name)
    return NameMap(sources, tuple(ignored), tuple(unexpected))


def _expected(model: PreTrainedModel, name: str) -> bool:
    """Return whether the model's own code says that this stored tensor may be left out."""
    patterns = model._keys_to_ignore_on_load_unexpected or ()
    return any(re.search(pattern, name) for pattern in patterns)


def _needs_conversion(model: PreTrainedModel, name: str) -> PlanError:
    return PlanError(
        "LM-MODEL-CONVERSION",
        f"{type(model).__name__} stores tensors in another arrangement than it computes with",
        where={"tensor": name},
        why="tensors of this model are merged or split while loading, which is not supported for this family",
    )
