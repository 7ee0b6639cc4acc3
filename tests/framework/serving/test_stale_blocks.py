"""What a sequence has left in blocks reaches no other one, not even what is no number."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from loadmaster_engine.load import finite
from loadmaster_engine.run.messages import decode, encode
from loadmaster_engine.run.paged import part
from loadmaster_engine.run.paged.arena import KvArena
from loadmaster_engine.run.paged.layout import begun_blocks
from loadmaster_engine.serve.messages import NO_TOKEN, Drawn, Probe, ReserveKv, Row, RowSampling, Step
from peft_adapters import adapter_tensors, engine, make_adapter, write_adapter_tensors
from tiny_models import IDS

SIZE: Final = 4
BLOCKS: Final = 6
BEGUN: Final = [1, 2, 3, 5]
"""The blocks of `ROWS`, in order."""
ROWS: Final = (
    # A chunk that ends within a block, and then two sequences of unlike length that draw side by side.
    (Row(tuple(IDS[:6]), 0, (2, 5)), Row(tuple(IDS[:2]), 0, (3,))),
    (
        Row((IDS[6],), 6, (2, 5), RowSampling(0, logprobs=4)),
        Row((IDS[2],), 2, (3,), RowSampling(0, logprobs=4)),
    ),
    (Row(tuple(IDS[7:10]), 7, (2, 5, 1), RowSampling(1, logprobs=4)), Row((IDS[3],), 3, (3,), RowSampling(1, logprobs=4))),
)


@pytest.mark.parametrize(
    ("start", "count", "begun"),
    [(0, 1, [7]), (0, 4, [7]), (0, 5, [7, 3]), (3, 1, []), (3, 2, [3]), (4, 1, [3]), (2, 10, [3, 9])],
)
def test_blocks_begin_with_their_first_token(start: int, count: int, begun: list[int]) -> None:
    assert begun_blocks([Row((0,) * count, start, (7, 3, 9))], SIZE) == begun


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_numbers_that_are_none_stay_with_their_sequence(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_adapter(tmp_path, family, target_modules=["k_proj", "v_proj"])
    broken = {name: torch.full_like(tensor, math.nan) for name, tensor in adapter_tensors(made.adapter).items()}
    monkeypatch.setattr(finite, "first_not_finite", lambda *_: None)  # such an adapter is refused, other causes are not
    write_adapter_tensors(made.adapter, broken)
    arenas: list[KvArena] = []

    def kept(*args: Any) -> KvArena:
        arenas.append(KvArena(*args))
        return arenas[-1]

    monkeypatch.setattr(part, "KvArena", kept)
    with engine(made.model, made.adapter) as loaded:

        def call(op: str, body: bytes) -> bytes:
            return loaded._ranks.step(op, body)

        def answers() -> list[Drawn]:
            call("reserve_kv", encode(ReserveKv(blocks=BLOCKS, block_size=SIZE)))
            return [decode(call("step", encode(Step(rows))), Drawn) for rows in ROWS]

        def after_another() -> list[Drawn]:
            call("reserve_kv", encode(ReserveKv(blocks=BLOCKS, block_size=SIZE)))
            poison = Row(tuple(range(SIZE * BLOCKS)), 0, tuple(range(BLOCKS)), RowSampling(0, logprobs=1), adapter=1)
            drawn = decode(call("step", encode(Step((poison,)))), Drawn)
            assert drawn.tokens[0].id == NO_TOKEN
            return [decode(call("step", encode(Step(rows))), Drawn) for rows in ROWS]

        call("probe", encode(Probe(tokens=16)))
        clean = answers()
        assert all(math.isfinite(value) for drawn in clean for token in drawn.tokens for _, value in token.top)
        assert after_another() == clean
        # Which kernel runs decides whether a masked NaN comes through, so the blocks are looked at, too.
        for tensor in (tensor for pair in arenas[-1].layers for tensor in pair):
            finite_blocks = tensor.view(BLOCKS, -1).isfinite().all(dim=1)
            assert finite_blocks.nonzero().flatten().tolist() == BEGUN
