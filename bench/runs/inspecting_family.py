"""A plugin for the benchmark: the transformers family, whose models touch and sum their own weights before their first step.

So what is compared is what the workers hold. Every rank leaves its findings as a file in the folder that `BENCH_INSPECT` names.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.runs.stopwatch import wants_check
from bench.runs.sums import Sums, merge_sums
from loadmaster.plugin import CausalModel, Match, ModelFamily, ModulePlacement, hookimpl
from loadmaster_plugins.transformers_models.family import TransformersFamily

if TYPE_CHECKING:
    import torch

Starts = dict[str, int]
"""Where a module's own part begins on the axis that is cut, by the module's path."""


class InspectingFamily(TransformersFamily):
    """The same models, looked at before they first run."""

    name = "bench-inspecting"

    def match(self, config: Mapping[str, Any]) -> Match | None:
        """Claim what the family itself claims, ahead of it."""
        found = super().match(config)
        return found and Match(score=1.0, evidence="the benchmark inspects what is loaded")

    def build(self, config: Mapping[str, Any], dtype: str, placements: Sequence[ModulePlacement]) -> CausalModel:
        """Build the model inside a wrapper that inspects it."""
        return InspectedModel(super().build(config, dtype, placements), _starts(placements))


class InspectedModel:
    """Passes everything on; the first step is preceded by touching and, where asked for, summing all parameters."""

    def __init__(self, model: CausalModel, starts: Starts) -> None:
        self._model = model
        self._starts = starts
        self._inspected = False

    @property
    def module(self) -> torch.nn.Module:
        """The module tree of the model."""
        return self._model.module

    def new_cache(self) -> Any:
        """Return an empty cache of the model."""
        return self._model.new_cache()

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any, *, last_only: bool
    ) -> torch.Tensor:
        """Inspect once, then run the step."""
        if not self._inspected:
            self._inspected = True
            _inspect(dict(self.module.named_parameters()), self._starts)
        return self._model.forward(tokens, mask, positions, cache, last_only=last_only)


def read_findings(folder: Path) -> tuple[float, Sums | None]:
    """Return the slowest rank's seconds of touching, and the sums over all ranks where they were asked for.

    Raises ValueError when two ranks that hold the same tensor entirely hold different values.
    """
    found = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    touching = max(one["touch"] for one in found)
    return touching, merge_sums([one["sums"] for one in found]) if found[0]["sums"] else None


def _inspect(tensors: dict[str, torch.Tensor], starts: Starts) -> None:
    from bench.runs.touch import touch

    begin = time.perf_counter()
    touch(tensors.values())
    touching = time.perf_counter() - begin
    sums = _sums(tensors, starts) if wants_check() else None
    file = Path(os.environ["BENCH_INSPECT"]) / f"{os.getpid()}-{id(tensors)}.json"
    file.write_text(json.dumps({"touch": touching, "sums": sums}))


def _sums(tensors: dict[str, torch.Tensor], starts: Starts) -> Sums:
    from bench.runs.sums import tensor_sum

    sums: Sums = {"whole": {}, "parts": {}}
    for name, tensor in tensors.items():
        path = name.rpartition(".")[0]
        if path not in starts:
            sums["whole"][name] = tensor_sum(tensor)
            continue
        # The second dimension is cut where the input is, which the module's own name tells for the models benchmarked here.
        row_split = path.endswith(("o_proj", "down_proj"))
        sums["parts"][name] = tensor_sum(tensor, (0, starts[path]) if row_split else (starts[path], 0))
    return sums


def _starts(placements: Sequence[ModulePlacement]) -> Starts:
    """Return the first owned element of every module that is cut on one axis into one interval."""
    starts = {}
    for entry in placements:
        owned = [intervals for intervals in entry.placement.owns.values() if intervals]
        if owned:
            starts[entry.path] = owned[0][0].start
    return starts


@hookimpl
def loadmaster_models() -> list[ModelFamily]:
    """Return the one family of this plugin."""
    return [InspectingFamily()]
