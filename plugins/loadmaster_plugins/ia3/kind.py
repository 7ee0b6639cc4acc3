"""IA3: one vector per linear layer, which scales the layer's result or, in feed-forward modules, its input."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from loadmaster_hookspecs.adapters import (
    AdapterClaim,
    AdapterModule,
    AdapterPart,
    BaseLayer,
    LiveChange,
    MergeChange,
    StoredAdapter,
)
from loadmaster_hookspecs.findings import Match
from loadmaster_hookspecs.layout import AxisMap, TensorLayout
from loadmaster_plugins.peft_files.config import Names, Rules, read_config
from loadmaster_plugins.peft_files.expressions import check_expressions
from loadmaster_plugins.peft_files.matching import match, wrong_shape
from loadmaster_plugins.peft_files.scene import Changes, Scene

if TYPE_CHECKING:
    import torch


class Fields(Names, frozen=True, kw_only=True):
    """The honoured fields of adapter_config.json. Absent ones have peft's defaults."""

    feedforward_modules: list[str] | str | None = None


RULES: Final = Rules("IA3Config", Fields, irrelevant=frozenset({"init_ia3_weights"}))
VECTORS: Final = Changes("vectors", {".ia3_l": "ia3_l"}, ("linear",))

RESULT: Final = TensorLayout(name="result", dims=(AxisMap(axis="out"), AxisMap(axis="one")), dtype="F32", factor=True)
INPUT: Final = TensorLayout(name="input", dims=(AxisMap(axis="one"), AxisMap(axis="in")), dtype="F32", factor=True)
"""A vector has the role of what it scales. As in peft it stays float32 beside a model of a narrower type."""


class IA3:
    """Scaled activations: l * (W x + b), or W (l * x) + b."""

    name = "ia3"

    def detect(self, config: Mapping[str, Any]) -> Match | None:
        """Recognise the type that peft writes."""
        return Match(score=1.0, evidence="peft_type IA3") if config.get("peft_type") == "IA3" else None

    def claim(self, stored: StoredAdapter, modules: Sequence[AdapterModule]) -> AdapterClaim:
        """Return what the adapter does to the model. Imports peft, whose IA3Config judges the configuration."""
        config, findings = read_config(stored.config, RULES)
        check_expressions(config)
        scene = match(stored, config, modules, VECTORS)
        parts = tuple(_part(scene, path, roles["ia3_l"]) for path, roles in scene.names.changed.items())
        replacements = scene.replacements()
        inputs = sum("input" in part.tensors for part in parts)
        facts = [
            "IA3",
            scene.matched(),
            f"{inputs} on inputs" if inputs else "",
            str(scene.repair),
            f"{len(replacements)} parameters replaced" if replacements else "",
        ]
        return AdapterClaim(
            summary=", ".join(filter(None, facts)),
            parts=parts,
            replacements=replacements,
            findings=(*findings, *scene.remarks()),
        )

    def live(self, part: AdapterPart, tensors: Mapping[str, torch.Tensor], layer: BaseLayer) -> LiveChange:
        """Return how the module's input or result changes. A partial result is scaled as the sum is, base bias included."""
        if "input" in tensors:
            scales = tensors["input"].flatten()
            return LiveChange(input=lambda x: (x * scales).to(x.dtype))
        factors = tensors["result"].flatten()
        return LiveChange(result=lambda _x, output: (output * factors).to(output.dtype))

    def merge(self, part: AdapterPart, tensors: Mapping[str, torch.Tensor], layer: BaseLayer) -> Mapping[str, MergeChange]:
        """Return how the weight's columns change, or its rows and the bias."""
        if "input" in tensors:
            scales = tensors["input"]
            return {"weight": lambda start, stop, rows: rows * scales}
        factors = tensors["result"]
        changes: dict[str, MergeChange] = {
            "weight": lambda start, stop, rows: rows * factors[start:stop],
            "bias": lambda start, stop, rows: rows * factors[start:stop].flatten(),
        }
        return {name: changes[name] for name in part.touches}


def _part(scene: Scene, path: str, tensor: str) -> AdapterPart:
    """Return what a vector does to its module; `path` is the module's name in the file.

    Raises IntegrityError LM-ADAPTER-SHAPE for a vector of another length, or of another direction than configured.
    """
    module, shape = scene.module(path), scene.stored.tensors[tensor].shape
    layout = INPUT if _scales_input(scene.config.feedforward_modules, path, shape) else RESULT
    wanted = (1, module.in_features) if layout is INPUT else (module.out_features, 1)
    if shape != wanted:
        said = "names" if layout is INPUT else "does not name"
        raise wrong_shape(scene.stored, tensor, module, wanted, f"feedforward_modules {said} the module; ")
    biased = layout is RESULT and "bias" in module.parameters
    return AdapterPart(
        path=module.path,
        kind=module.kind,
        scale=1.0,
        axes={"one": 1},
        tensors={layout.name: tensor},
        layouts=(layout,),
        touches=("weight", "bias") if biased else ("weight",),
    )


def _scales_input(feedforward: set[str] | str | None, path: str, shape: tuple[int, ...]) -> bool:
    """Return whether a module is one of the feed-forward ones, as peft decides.

    Where the configuration leaves that to peft's table of models, the vector's direction tells which they were.
    """
    if feedforward is None:
        return shape[:1] == (1,)
    if isinstance(feedforward, str):
        return re.fullmatch(feedforward, path) is not None
    return any(path.endswith(name) for name in feedforward)
