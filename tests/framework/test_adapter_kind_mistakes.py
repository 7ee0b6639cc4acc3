"""What an adapter kind gets wrong is an error that names its plugin, before it becomes wrong numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from peft import IA3Config

import loadmaster as lm
from loadmaster.plugin import AdapterClaim, AdapterMode, AdapterModule, Match, Replacement, StoredAdapter, TensorMeta, hookimpl
from loadmaster_engine.plan.adapter_results import checked_adapter_claim
from loadmaster_plugins.ia3.kind import IA3
from peft_adapters import edit_adapter_config, make_adapter

Change = Callable[[AdapterClaim], Any]

VECTOR = TensorMeta(name="base_model.model.l.k_proj.ia3_l", dtype="F32", shape=(8, 1), file=0, start=0, stop=32)
MODULES = (
    AdapterModule(path="l.k_proj", kind="linear", in_features=8, out_features=8, parameters={"weight": (8, 8)}),
    AdapterModule(path="norm", kind="other", parameters={"weight": (8,)}),
)
CONFIG = {"peft_type": "IA3", "target_modules": ["k_proj"], "feedforward_modules": []}
STORED = StoredAdapter(name="it", config=CONFIG, tensors={VECTOR.name: VECTOR})


def of_part(**values: Any) -> Change:
    return lambda claim: replace(claim, parts=(replace(claim.parts[0], **values),))


def of_layout(**values: Any) -> Change:
    return lambda claim: of_part(layouts=(replace(claim.parts[0].layouts[0], **values),))(claim)


def replacing(path: str, name: str) -> Change:
    return lambda claim: replace(claim, replacements=(Replacement(path=path, name=name, tensor=VECTOR.name),))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _: None, "returned NoneType instead of an AdapterClaim"),
        (of_part(scale="1"), "Expected `float`"),
        (of_part(path="nothing"), "no module nothing of kind linear"),
        (of_part(kind="embedding"), "no module l.k_proj of kind embedding"),
        (of_part(path="norm", kind="other"), "has the axes ['out'], known are ['one', 'weight.0']"),
        (of_part(scale=float("inf")), "scale inf is no number"),
        (of_part(layouts=()), "each role needs both, once"),
        (of_part(leading=("A",)), "leading ['A']: each role needs both, once"),
        (of_part(axes={}), "result has the axes ['one'], known are ['in', 'out', 'weight.0', 'weight.1']"),
        (of_part(axes={"one": 1, "in": 3}), "['in'] are axes of the module"),
        (of_layout(staged=True), "result is marked as computed, scratched or staged"),
        (of_layout(dtype="F33"), "no element type is called 'F33'"),
        (of_part(tensors={"result": "x"}), "claims tensors that are not stored: x"),
        (lambda claim: replace(claim, parts=()), "leaves 1 tensors out without a reason"),
        (lambda claim: replace(claim, parts=claim.parts * 2), "two parts are of the same"),
        (replacing("norm", "bias"), "norm has no plain parameter bias"),
    ],
)
def test_a_mistaken_claim_is_found(change: Change, why: str) -> None:
    claim = IA3().claim(STORED, MODULES)
    assert checked_adapter_claim(claim, STORED, MODULES) == claim
    with pytest.raises((TypeError, ValueError)) as caught:
        checked_adapter_claim(change(claim), STORED, MODULES)
    assert why in str(caught.value)


class Mistaken(IA3):
    """IA3 under another type, with one call replaced."""

    name = "mistaken"

    def __init__(self, call: str, result: Any) -> None:
        setattr(self, call, lambda *_: result)

    def detect(self, config: Mapping[str, Any]) -> Match | None:
        return Match(score=1.0, evidence="") if config["peft_type"] == "MISTAKEN" else None

    @hookimpl
    def loadmaster_adapters(self) -> list[Any]:
        return [self]


@pytest.mark.parametrize(
    ("call", "result", "mode", "why"),
    [
        ("claim", AdapterClaim(summary="", parts=()), "live", "leaves 2 tensors out without a reason"),
        ("live", lambda x, output: output, "live", "returned function instead of a LiveChange"),
        ("merge", {"bias": None}, "merged", "changes ['bias'] of a module whose part touches ['weight']"),
    ],
)
def test_the_error_names_the_plugin(call: str, result: Any, mode: AdapterMode, why: str, tmp_path: Path) -> None:
    made = make_adapter(tmp_path, kind=IA3Config, target_modules=["k_proj"], feedforward_modules=[])
    edit_adapter_config(made.adapter, peft_type="MISTAKEN")
    plugins = [Mistaken(call, result)]
    with pytest.raises(lm.PluginError) as caught:
        lm.Engine(made.model, adapters={"it": made.adapter}, adapter_mode=mode, executor="inline", plugins=plugins)
    assert caught.value.code == "LM-PLUGIN-FAILED"
    assert str(caught.value.report.where["call"]).startswith(f"{call} of adapter kind mistaken")
    assert why in caught.value.report.why
