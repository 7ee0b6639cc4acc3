"""Workers that adapters come to and go from, driven by hand: the calls that the host makes, with the answers of all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

import loadmaster as lm
from loadmaster_engine.run.messages import Tokens, decode, encode
from loadmaster_engine.run.service import WorkerService
from loadmaster_engine.serve.adapter_messages import AdapterBuild, AdapterClose, AdapterMove, AdapterOpen, AdapterState
from loadmaster_engine.serve.messages import Drawn, Probe, ReserveKv, Row, RowSampling, Step
from loadmaster_hookspecs.plan import AdapterPlan
from tiny_models import IDS

BLOCK = 4
BLOCKS_EACH = 8
VOCABULARY = 250


class Piece(NamedTuple):
    """New tokens of sequence `number`, from position `start` on."""

    number: int
    ids: Sequence[int]
    start: int = 0
    adapter: int = 0
    draws: bool = True


class Workers:
    """The ranks of a model. `with` closes them."""

    def __init__(self, model: Path, ranks: int = 1, **options: Any) -> None:
        self._options = {"tensor_parallel": ranks, "dtype": "float32", **options}
        self.model = model
        self.engine = lm.Engine(model, executor="inline", **self._options)
        self.call("probe", Probe(tokens=16))
        self.call("reserve_kv", ReserveKv(blocks=64, block_size=BLOCK))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def call(self, op: str, *messages: msgspec.Struct) -> list[bytes]:
        bodies = [encode(message) for message in messages]
        answers = self.engine._ranks.executor.call(op, bodies if len(bodies) > 1 else bodies[0], timeout=60)
        return [answer.body for answer in answers]

    def plan(self, adapter: Path) -> AdapterPlan:
        options = {name: value for name, value in self._options.items() if name in ("tensor_parallel", "dtype")}
        return lm.plan(self.model, adapters={"it": adapter}, **options).data.adapters[0]

    def open(self, number: int, plan: AdapterPlan) -> list[AdapterState]:
        own = [msgspec.structs.replace(plan, ranks=(part,)) for part in plan.ranks]
        return self._states("adapter_open", *(AdapterOpen(number=number, plan=each) for each in own))

    def move(self, number: int, seconds: float = math.inf) -> list[AdapterState]:
        return self._states("adapter_move", AdapterMove(number=number, seconds=seconds))

    def build(self, number: int, parts: int = 1 << 20) -> list[AdapterState]:
        return self._states("adapter_build", AdapterBuild(number=number, parts=parts))

    def close(self, number: int) -> list[AdapterState]:
        return self._states("adapter_close", AdapterClose(number=number))

    def bring(self, number: int, adapter: Path) -> list[AdapterState]:
        """Do all of it at once."""
        self.open(number, self.plan(adapter))
        self.move(number)
        return self.build(number)

    def step(self, *pieces: Piece) -> list[npt.NDArray[np.float64]]:
        """Run pieces as one step, and return the logarithms of all probabilities after each that draws."""
        rows = [
            Row(
                tuple(piece.ids),
                piece.start,
                tuple(range(piece.number * BLOCKS_EACH, piece.number * BLOCKS_EACH + self._blocks(piece))),
                RowSampling(0, logprobs=VOCABULARY) if piece.draws else None,
                piece.adapter,
            )
            for piece in pieces
        ]
        drawn = decode(self.call("step", Step(tuple(rows)))[0], Drawn).tokens
        return [np.array([value for _, value in sorted(token.top)]) for token in drawn]

    def logits(self, adapter: int) -> npt.NDArray[np.float32]:
        """Return the engine's logits of `IDS` with an adapter."""
        result = self.engine._ranks.executor.call("logits", encode(Tokens(ids=tuple(IDS), adapter=adapter)), timeout=60)[0]
        assert result.bulk is not None
        return np.frombuffer(result.bulk, dtype=np.float32).reshape(len(IDS), -1)

    def services(self) -> list[WorkerService]:
        """Return the ranks themselves."""
        return services_of(self.engine)

    def _blocks(self, piece: Piece) -> int:
        return -(-(piece.start + len(piece.ids)) // BLOCK)

    def _states(self, op: str, *messages: msgspec.Struct) -> list[AdapterState]:
        return [decode(body, AdapterState) for body in self.call(op, *messages)]


def services_of(engine: lm.Engine) -> list[WorkerService]:
    """Return the ranks of an engine, which live in this process."""
    group: Any = engine._ranks.executor._group  # type: ignore[attr-defined]
    return [group._service] if hasattr(group, "_service") else [thread._service for thread in group._threads.values()]
