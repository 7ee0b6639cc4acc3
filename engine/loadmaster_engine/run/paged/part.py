"""One rank's part in serving: the probe, the reservation for keys and values, and the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from loadmaster_engine.run.adapters.adapters import Adapters
from loadmaster_engine.run.messages import decode, encode
from loadmaster_engine.run.paged.arena import KvArena
from loadmaster_engine.run.paged.attention import StepCache
from loadmaster_engine.run.paged.layout import PackedStep, begun_blocks
from loadmaster_engine.run.paged.peak import Peak
from loadmaster_engine.run.paged.sampling import draw
from loadmaster_engine.run.products.arranged import arrange as arrange_matrices
from loadmaster_engine.run.products.arranged import can_arrange
from loadmaster_engine.run.products.plain import compute_plainly
from loadmaster_engine.serve.messages import Drawn, Probe, Probed, ReserveKv, Row, RowSampling, Step
from loadmaster_hookspecs.dtypes import TORCH_NAMES
from loadmaster_hookspecs.errors import PlanError, WorkerError
from loadmaster_hookspecs.executors import Result
from loadmaster_hookspecs.kv import KvLayout, PagedModel
from loadmaster_hookspecs.models import CausalModel

if TYPE_CHECKING:
    import torch


WATCHED: Final = 7
"""Tokens of the step by which modules are watched, beside a step of one."""


class ServingPart:
    """Owns the keys and values of one rank.

    Raises PlanError LM-SERVE-MODEL for a model whose family has no attention over blocks.
    """

    def __init__(self, model: CausalModel, adapters: Adapters, rank: int, device: str) -> None:
        if not isinstance(model, PagedModel):
            raise PlanError(
                "LM-SERVE-MODEL",
                f"{type(model).__name__} cannot be served",
                why="its model family has no attention over blocks of keys and values",
                hints=["Engine.generate runs it, one batch at a time"],
            )
        self._model: PagedModel = model
        self._adapters = adapters
        self._rank = rank
        self._device = device
        self._arrange = False
        self._layout: KvLayout | None = None
        self._arena: KvArena | None = None

    def probe(self, body: bytes) -> Result:
        """Answer Probe with Probed."""
        import torch

        asked = decode(body, Probe)
        with torch.inference_mode(), self._adapters.probing():
            arranged = self._prepare(arrange=asked.arrange)
            with Peak(self._device) as peak:
                self._layout = self._model.kv_layout(asked.tokens)
        self._watch(self._layout)
        free = 0 if self._device == "cpu" else int(torch.cuda.mem_get_info(self._device)[0])
        return Result(body=encode(Probed(layout=self._layout, activation=peak.nbytes, free=free, arranged=arranged)))

    def _prepare(self, *, arrange: bool) -> int:
        """Choose how products are computed, and return the bytes of arranged matrices. Runs one token, so all ranks call it."""
        import torch

        def run() -> None:
            with torch.inference_mode():
                self._model.kv_layout(1)

        self._arrange = arrange
        arranged = 0
        if self._device == "cpu":
            arranged = arrange_matrices(self._model.module, run) if arrange and can_arrange() else 0
            compute_plainly(self._model.module)
        run()  # what libraries take when they are first used is not the step's
        return arranged

    def take_over(self, other: ServingPart) -> bool:
        """Take the keys' and values' memory of another part, and return whether this model keeps the same in it.

        Runs a few tokens, so all ranks do this at once.
        """
        import torch

        with torch.inference_mode(), self._adapters.probing():
            self._prepare(arrange=other._arrange)
            self._layout = self._model.kv_layout(2)
        self._watch(self._layout)
        self._arena = other._arena
        return other._layout is None or other._layout == self._layout

    @property
    def held(self) -> int:
        """Bytes of the reservation that take memory by now."""
        return 0 if self._arena is None else self._arena.held

    def reserve(self, body: bytes) -> Result:
        """Answer ReserveKv. An earlier reservation is given back first."""
        asked = decode(body, ReserveKv)
        if self._layout is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked for keys and values before it was probed")
        self._arena = None
        self._arena = KvArena(self._layout, asked.blocks, asked.block_size, self._device, self._rank)
        return Result()

    def step(self, body: bytes) -> Result:
        """Answer Step with Drawn on rank 0: the other ranks have computed their part and draw nothing."""
        asked = decode(body, Step)
        logits, packed = self._run(asked)
        if self._rank:
            return Result()
        rows = [asked.rows[packed.order[index]] for index in packed.drawing]
        drawn = draw(logits, [row.sampling for row in rows if row.sampling is not None]) if rows else ()
        places = [packed.order[index] for index in packed.drawing]
        return Result(body=encode(Drawn(tuple(token for _, token in sorted(zip(places, drawn, strict=True))))))

    def _run(self, asked: Step) -> tuple[torch.Tensor, PackedStep]:
        import torch

        if self._arena is None:
            raise WorkerError("LM-SERVICE-ORDER", "a rank was asked for a step before it had room for keys and values")
        with torch.inference_mode():
            for source, target in asked.copies:
                self._arena.copy(source, target)
            return self._compute(asked.rows, self._arena)

    def _compute(self, rows: Sequence[Row], arena: KvArena) -> tuple[torch.Tensor, PackedStep]:
        import torch

        arena.clear(begun_blocks(rows, arena.block_size))
        packed = PackedStep(rows, arena.block_size, getattr(torch, TORCH_NAMES[arena.layout.dtype]), self._device)
        self._adapters.selection.several(packed.token_segments, packed.row_segments)
        return self._model.step(packed.tokens, packed.positions, packed.last, StepCache(arena, packed)), packed

    def _watch(self, layout: KvLayout) -> None:
        """Let adapters see how steps call modules, as they will from now on. All ranks do this at once."""
        import torch

        arena = KvArena(layout, 1, WATCHED, self._device, self._rank)
        with torch.inference_mode(), self._adapters.watching():
            for count in (1, WATCHED):
                self._compute((Row((0,) * count, 0, (0,), RowSampling(0)),), arena)
