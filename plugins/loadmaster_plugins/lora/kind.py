"""The kind itself: recognised by its configuration, claimed in the planner, computed in the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from loadmaster_plugins.lora.claim import claim

if TYPE_CHECKING:
    import torch


class Lora:
    """Low-rank adapters: W + scale * B A."""

    name = "lora"

    def detect(self, config: Mapping[str, Any]) -> Match | None:
        """Recognise the type that peft writes."""
        return Match(score=1.0, evidence="peft_type LORA") if config.get("peft_type") == "LORA" else None

    def claim(self, stored: StoredAdapter, modules: Sequence[AdapterModule]) -> AdapterClaim:
        """Return what the adapter does to the model. Imports peft, whose LoraConfig judges the configuration."""
        return claim(stored, modules)

    def live(self, part: AdapterPart, tensors: Mapping[str, torch.Tensor], layer: BaseLayer) -> LiveChange:
        """Return how the module's result changes."""
        from loadmaster_plugins.lora.product import live

        return live(part, tensors, layer)

    def merge(self, part: AdapterPart, tensors: Mapping[str, torch.Tensor], layer: BaseLayer) -> Mapping[str, MergeChange]:
        """Return how the module's weight, and its bias where the adapter has one, change."""
        from loadmaster_plugins.lora.product import merge

        return merge(part, tensors, layer)
