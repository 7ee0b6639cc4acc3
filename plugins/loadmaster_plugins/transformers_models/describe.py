"""From a checkpoint index to the model specification that the planner works on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from loadmaster_hookspecs.errors import IntegrityError
from loadmaster_hookspecs.formats import CheckpointIndex
from loadmaster_hookspecs.models import ModelOutline, ModelSpec
from loadmaster_plugins.transformers_models.modules import float_buffers, module_specs
from loadmaster_plugins.transformers_models.outline import outline_of
from loadmaster_plugins.transformers_models.skeleton import build_skeleton
from loadmaster_plugins.transformers_models.stored_names import map_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def describe_model(index: CheckpointIndex, family: str) -> ModelSpec:
    """Return modules, ties and the name map. Raises PlanError for models that this family cannot describe."""
    outline = outline_of(index.config)
    _refuse_hollow(outline, index)
    model = build_skeleton(index.config, "F32")
    names = map_names(model, index.tensors)
    modules = tuple(module_specs(model, model.tp_plan or {}, outline, float_buffers(model)))
    return ModelSpec(
        family=family,
        outline=outline,
        modules=modules,
        sources=names.sources,
        ties=dict(model.get_expanded_tied_weights_keys()),
        ignored=names.ignored,
        unexpected=names.unexpected,
        keep_float32=_kept_in_float32(model),
    )


def _refuse_hollow(outline: ModelOutline, index: CheckpointIndex) -> None:
    """Raise IntegrityError when there is not even one tensor per layer, before a module is made for each of them."""
    if outline.num_layers > len(index.tensors):
        raise IntegrityError(
            "LM-LEDGER-MISSING",
            "the files hold fewer tensors than the model has layers",
            where={"file": "config.json", "key": "num_hidden_layers"},
            why=f"config says {outline.num_layers} layers, the files have {len(index.tensors)} tensors",
            hints=["the configuration and the weights are of different models: compare their versions"],
        )


def _kept_in_float32(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the parameters that the model's authors want in float32 whatever the rest is loaded as."""
    patterns = {*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())}
    if not patterns:
        return ()
    expression = re.compile("|".join(rf"(^|\.){re.escape(pattern)}($|\.)" for pattern in patterns))
    return tuple(name for name, _ in model.named_parameters() if expression.search(name))
