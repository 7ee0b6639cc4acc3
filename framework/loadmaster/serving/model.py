"""A loaded model with a reservation for keys and values."""

from __future__ import annotations

import os
from typing import Any, Final

from loadmaster import memory
from loadmaster.engine import STEP_TIMEOUT, Engine
from loadmaster.serving.budget import KvPlan, check_plan, plan_kv
from loadmaster.serving.settings import EngineSettings
from loadmaster_engine.run.messages import decode, encode
from loadmaster_engine.serve.messages import Probe, Probed, ReserveKv
from loadmaster_hookspecs.errors import UsageError
from loadmaster_hookspecs.events import HOST_RANK, Notice
from loadmaster_hookspecs.models import Tokenizer
from loadmaster_hookspecs.plan import LoadPlan

PROBE_TIMEOUT: Final = 600.0
"""Seconds that the probe, a step of the largest batch, may take."""


class ServedModel(Engine):
    """An engine whose ranks answer steps of many requests.

    After the load one step of the largest batch finds out what attention keeps per token and what the step takes for a while;
    what is left of the memory becomes blocks. `kv` says how many.
    """

    def __init__(self, path: str | os.PathLike[str], settings: EngineSettings, **options: Any) -> None:
        self._settings = settings
        super().__init__(path, **options)
        try:
            self.kv = self._reserve_kv()
        except BaseException:  # boundary: whatever interrupts the reservation, the workers must not outlive it
            self.close()
            raise

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer, as the model's files say."""
        return self._defaults.stop

    def step(self, op: str, body: bytes) -> bytes:
        """Send one call to all ranks and return the answer of rank 0. From one thread at a time."""
        return self._step(op, body)

    def tokenizer_or_none(self) -> Tokenizer | None:
        """Return the tokenizer, or None for a model that has none: it is served with token ids."""
        try:
            return self.tokenizer
        except UsageError:
            return None

    def _check_memory(self, plan: LoadPlan, available: int) -> None:
        super()._check_memory(plan, available)
        if plan.settings.device == "cpu":
            check_plan(plan, self._settings, available)

    def _reserve_kv(self) -> KvPlan:
        positions = self.plan.data.outline.max_positions or self._settings.max_batch_tokens
        tokens = min(self._settings.max_batch_tokens, positions)
        results = self._executor.call("probe", encode(Probe(tokens=tokens)), timeout=PROBE_TIMEOUT)
        probed = [decode(result.body, Probed) for result in results]
        planned = plan_kv(self.plan.data, probed, self._settings, memory.available_memory())
        for text in planned.notices:
            self._observe(Notice(rank=HOST_RANK, text=text))
        body = encode(ReserveKv(blocks=planned.blocks, block_size=self._settings.block_size))
        self._executor.call("reserve_kv", body, timeout=STEP_TIMEOUT)
        return planned
