"""Families of every shape that blocks can hold give transformers' own probabilities, in pieces and in company.

Two sequences run together in pieces of uneven length, over blocks in no order.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
import torch

import loadmaster as lm
from family_census import IDS, random_model
from loadmaster_engine.run.messages import decode, encode
from loadmaster_engine.serve.messages import Drawn, Probe, ReserveKv, Row, RowSampling, Step
from tiny_models import reference_logits, save_model

OTHER: Final = [5, 9, 61, 3, 77, 12, 13]
CUTS: Final = ((0, 3, 6, 7, 10, 11), (0, 1, 2, 5, 6, 7))
TABLES: Final = ((2, 5, 1), (3, 0))

SERVED: Final = (
    "cohere2",  # windows on some layers, no positions on others
    "deepseek_v2",  # values narrower than keys
    "dory",  # layers that run several times
    "gemma3n_text",  # layers that share keys and values
    "gemma4_text",  # layers of different widths
    "gpt_neox",  # a fused projection
    "gpt_oss",  # sinks
    "gemma2",  # capped scores
    "granitemoe",  # experts and a scale of its own
    "mistral",  # windows on all layers
)

UNDIVIDED: Final = {("dory", 2)}
"""What cannot be divided at all."""

REFUSED: Final = {
    "bamba": "states of another kind",
    "falcon_h1": "states of another kind",
    "deepseek_v32": "attention input indices",
    "doge": "masks itself",
    "llama4_text": "in chunks",
}


class Alone:
    """A loaded model and direct calls to its only rank."""

    def __init__(self, engine: lm.Engine) -> None:
        self._engine = engine
        self.call("probe", encode(Probe(tokens=16)))
        self.call("reserve_kv", encode(ReserveKv(blocks=6, block_size=4)))

    def call(self, op: str, body: bytes) -> bytes:
        return self._engine._ranks.step(op, body)


def logprobs(model: torch.nn.Module, ids: list[int]) -> npt.NDArray[np.float32]:
    made: npt.NDArray[np.float32] = torch.log_softmax(torch.from_numpy(reference_logits(model, ids)), -1).numpy()
    return made


@pytest.mark.parametrize(
    ("family", "ranks"), [(family, ranks) for family in SERVED for ranks in (1, 2) if (family, ranks) not in UNDIVIDED]
)
def test_probabilities_are_those_of_transformers(family: str, ranks: int, tmp_path: Path) -> None:
    model = random_model(family)
    save_model(model, tmp_path)
    expected = [logprobs(model, ids) for ids in (IDS, OTHER)]
    with lm.Engine(tmp_path, tensor_parallel=ranks, executor="inline") as engine:
        rank = Alone(engine)
        for spans in zip(*(pairwise(cuts) for cuts in CUTS), strict=True):
            rows = [
                Row(tuple(ids[begin:end]), begin, table[: -(-end // 4)], RowSampling(0, logprobs=8))
                for ids, table, (begin, end) in zip((IDS, OTHER), TABLES, spans, strict=True)
            ]
            drawn = decode(rank.call("step", encode(Step(tuple(rows)))), Drawn)
            for token, own, (_, end) in zip(drawn.tokens, expected, spans, strict=True):
                assert [value for _, value in token.top] == pytest.approx(
                    [own[end - 1, number] for number, _ in token.top], abs=1e-4
                )


@pytest.mark.parametrize("family", REFUSED)
def test_other_families_are_refused_with_the_reason(family: str, tmp_path: Path) -> None:
    save_model(random_model(family), tmp_path)
    with lm.Engine(tmp_path) as engine, pytest.raises(lm.PlanError, match=REFUSED[family]) as caught:
        Alone(engine)
    assert caught.value.code == "LM-SERVE-MODEL"
