"""A complete model family without transformers: a table whose row `i` holds the logits of what follows token `i`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loadmaster.plugin import (
    AxisMap,
    CausalModel,
    CheckpointIndex,
    FileReader,
    Match,
    ModelFamily,
    ModelOutline,
    ModelSpec,
    ModulePlacement,
    ModuleSpec,
    Piece,
    TensorLayout,
    Tokenizer,
    UsageError,
    hookimpl,
)

if TYPE_CHECKING:
    import torch

TENSOR = "table.weight"


def write_bigram_model(folder: Path, size: int = 8) -> npt.NDArray[np.float32]:
    """Write the model as a folder of `.npy` files and return its table."""
    folder.mkdir(parents=True)
    table = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    np.save(folder / f"{TENSOR}.npy", table)
    (folder / "config.json").write_text(json.dumps({"model_type": "bigram", "vocab_size": size}))
    return table


class Bigram:
    """The model of one rank."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def new_cache(self) -> None:
        return None

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any, *, last_only: bool
    ) -> torch.Tensor:
        logits: torch.Tensor = self.module.get_parameter(TENSOR)[tokens]
        return logits[:, -1:] if last_only else logits


class BigramFamily:
    """Describes and builds bigram models."""

    name = "bigram"

    def preload(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        return ("torch",)

    def match(self, config: Mapping[str, Any]) -> Match | None:
        return Match(score=1.0, evidence="bigram") if config.get("model_type") == "bigram" else None

    def outline(self, config: Mapping[str, Any]) -> ModelOutline:
        size = config["vocab_size"]
        return ModelOutline(
            architecture="Bigram",
            hidden_size=size,
            num_layers=1,
            vocab_size=size,
            query_heads=4,
            kv_heads=4,
            head_dim=1,
            max_positions=1000,
        )

    def describe(self, index: CheckpointIndex) -> ModelSpec:
        outline = self.outline(index.config)
        axes = {"vocab": outline.vocab_size, "out": outline.vocab_size}
        layout = TensorLayout(name="weight", dims=(AxisMap(axis="vocab"), AxisMap(axis="out")))
        table = ModuleSpec(path="table", kind="embedding", style="replicate", axes=axes, tensors=(layout,))
        return ModelSpec(family=self.name, outline=outline, modules=(table,), sources={TENSOR: (Piece(tensor=TENSOR),)})

    def build(self, config: Mapping[str, Any], dtype: str, placements: Sequence[ModulePlacement]) -> CausalModel:
        import torch

        table = torch.nn.Module()
        table.weight = torch.nn.Parameter(torch.empty(config["vocab_size"], config["vocab_size"], device="meta"))
        return Bigram(torch.nn.ModuleDict({"table": table}))

    def tokenizer(self, index: CheckpointIndex, read: FileReader) -> Tokenizer:
        raise UsageError("LM-BIGRAM-TOKENIZER", "a bigram model has no tokenizer")


@hookimpl
def loadmaster_models() -> Sequence[ModelFamily]:
    return [BigramFamily()]
