"""VeRA adapters: a layer's W x becomes W x + b * B (d * A x), with vectors `d` and `b` that are learned for each layer.

`A` [rank, in] and `B` [out, rank] are random, and all layers share them: the file holds each once, as large as the largest
layer needs, and a layer uses their first columns and rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from loadmaster.plugin import (
    AdapterClaim,
    AdapterKind,
    AdapterModule,
    AdapterPart,
    AxisMap,
    BaseLayer,
    LiveChange,
    Match,
    MergeChange,
    PlanError,
    StoredAdapter,
    TensorLayout,
    hookimpl,
)

if TYPE_CHECKING:
    import torch

A, B, LAYER = "base_model.vera_A", "base_model.vera_B", "base_model.model."
LAYOUTS = (
    TensorLayout(name="A", dims=(AxisMap(axis="rank"), AxisMap(axis="in")), factor=True),
    TensorLayout(name="B", dims=(AxisMap(axis="out"), AxisMap(axis="rank")), factor=True),
    TensorLayout(name="d", dims=(AxisMap(axis="rank"),), factor=True),
    TensorLayout(name="b", dims=(AxisMap(axis="out"),), factor=True),
)
"""All four multiply: a rank with a part of a layer's columns needs them as much as the first one does."""

WITHOUT_EFFECT = {
    "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "task_type", "inference_mode",
    "vera_dropout", "d_initial", "init_weights", "projection_prng_key", "fan_in_fan_out",
}  # fmt: skip
"""Fields about origin, training and initialisation. The key made the projections, which are in the file."""

OFF: tuple[Any, ...] = (None, False, "none", [], {})
"""Values that switch a field off, known or not."""


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that decide what the adapter does, by the names under which peft's functions look for them."""

    r: Annotated[int, msgspec.Meta(ge=1)]
    target_modules: list[str] | str
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    save_projection: bool = True


class Vera:
    """Recognises, claims and computes."""

    name = "vera"

    def detect(self, config: Mapping[str, Any]) -> Match | None:
        """Recognise the type that peft writes."""
        return Match(score=1.0, evidence="peft_type VERA") if config.get("peft_type") == "VERA" else None

    def claim(self, stored: StoredAdapter, modules: Sequence[AdapterModule]) -> AdapterClaim:
        """Claim the layers that the configuration targets, if exactly their tensors are there."""
        from peft.tuners.tuners_utils import check_target_module_exists

        fields = read_fields(stored.config)
        linear = [module for module in modules if module.kind == "linear"]
        targets = [module for module in linear if check_target_module_exists(fields, module.path)]
        check_tensors(stored, fields.r, targets)
        parts = tuple(make_part(module, fields.r) for module in targets)
        return AdapterClaim(summary=f"VeRA, {len(parts)} layers, r {fields.r}", parts=parts)

    def live(self, part: AdapterPart, tensors: Mapping[str, torch.Tensor], layer: BaseLayer) -> LiveChange:
        """Add to the result. Ranks with some of the columns add to their partial result, which is summed anyway."""
        a, b = tensors["A"].T, tensors["B"].T
        inner, outer = tensors["d"], tensors["b"]

        def result(x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
            return output + ((x.to(a.dtype) @ a * inner) @ b * outer).to(output.dtype)

        return LiveChange(result)

    def merge(self, part: AdapterPart, tensors: Mapping[str, torch.Tensor], layer: BaseLayer) -> Mapping[str, MergeChange]:
        """Add the product to the weight, some rows at a time."""
        down = tensors["d"].unsqueeze(1) * tensors["A"]
        up = tensors["b"].unsqueeze(1) * tensors["B"]
        return {"weight": lambda start, stop, rows: rows + up[start:stop] @ down}


def read_fields(config: Mapping[str, Any]) -> Fields:
    """Return what the configuration says. Raises PlanError that names what cannot be honoured, or makes no sense."""
    passed = {*WITHOUT_EFFECT, *Fields.__struct_fields__}
    refused = [f"{name} = {value!r}" for name, value in config.items() if name not in passed and value not in OFF]
    if not config.get("save_projection", True):
        refused.append("save_projection = False: the projections are not in the file")
    if refused:
        hints = ["merge it into its base model with peft and load the result"]
        raise PlanError("LM-VERA-FIELD", "the adapter needs what cannot be honoured", why="; ".join(refused), hints=hints)
    try:
        return msgspec.convert(config, Fields)
    except msgspec.ValidationError as error:
        hints = ["save the adapter again with peft"]
        raise PlanError("LM-VERA-CONFIG", "the adapter's configuration makes no sense", why=str(error), hints=hints) from error


def check_tensors(stored: StoredAdapter, rank: int, targets: Sequence[AdapterModule]) -> None:
    """Raise PlanError that lists tensors which are absent, of another shape, or of no targeted layer."""
    shapes: dict[str, tuple[int, ...]] = {
        A: (rank, max((module.in_features for module in targets), default=0)),
        B: (max((module.out_features for module in targets), default=0), rank),
    }
    for module in targets:
        shapes[f"{LAYER}{module.path}.vera_lambda_d"] = (rank,)
        shapes[f"{LAYER}{module.path}.vera_lambda_b"] = (module.out_features,)
    found = {name: tensor.shape for name, tensor in stored.tensors.items()}
    faults = [
        *(f"{name} is missing" for name in shapes if name not in found),
        *(f"{name} belongs to no targeted layer of the model" for name in found if name not in shapes),
        *(f"{name} is {found[name]}, not {shape}" for name, shape in shapes.items() if found.get(name, shape) != shape),
    ]
    if faults:
        why = "; ".join(sorted(faults)[:8])
        where, hints = {"adapter": stored.name}, ["use the model that it was trained on, or save it again with peft"]
        raise PlanError("LM-VERA-TENSORS", "the adapter is not one of this model", where=where, why=why, hints=hints)


def make_part(module: AdapterModule, rank: int) -> AdapterPart:
    """Return what the adapter does to one layer."""
    own = {"d": f"{LAYER}{module.path}.vera_lambda_d", "b": f"{LAYER}{module.path}.vera_lambda_b"}
    return AdapterPart(
        path=module.path,
        kind=module.kind,
        scale=1.0,
        axes={"rank": rank},
        tensors={"A": A, "B": B, **own},
        layouts=LAYOUTS,
        leading=("A", "B"),
    )


@hookimpl
def loadmaster_adapters() -> list[AdapterKind]:
    """Return the kind."""
    return [Vera()]
