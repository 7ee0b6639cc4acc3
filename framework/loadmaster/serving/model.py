"""A loaded model with a reservation for keys and values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from loadmaster import memory
from loadmaster.adapters.moving import Answer
from loadmaster.bringup import bring_up
from loadmaster.engine import Engine
from loadmaster.serving.budget import KvPlan, arranges, plan_kv
from loadmaster.serving.fit import check_plan
from loadmaster.serving.settings import EngineSettings
from loadmaster.serving.tuned import with_tuned
from loadmaster_engine.run.messages import decode, encode
from loadmaster_engine.serve.messages import Held, Probe, Probed, ReserveKv, Sleep
from loadmaster_hookspecs.errors import ResourceError, UsageError
from loadmaster_hookspecs.models import Tokenizer
from loadmaster_hookspecs.plan import LoadPlan

PROBE_TIMEOUT: Final = 600.0
"""Seconds that the probe, a step of the largest batch, may take."""


class ServedModel(Engine):
    """An engine whose ranks answer steps of many requests.

    After the load one step of the largest batch finds out what attention keeps per token and what the step takes for a while;
    what is left of the memory becomes blocks. `kv` says how many. `between_steps` changes weights, which makes computed keys
    and values worthless; who schedules requests sets it.
    """

    def __init__(self, path: str | os.PathLike[str], settings: EngineSettings, **options: Any) -> None:
        self._wanted = self._settings = settings
        self._forgot_weights = False
        self._asleep = False
        self._arrange: bool | None = None
        self._arranged_bytes = 0
        self.between_steps: Callable[[Callable[[], dict[int, str]]], dict[int, str]] = super()._between_calls
        limits = {"adapter_bytes": settings.adapter_bytes, "max_adapter_rank": settings.max_adapter_rank}
        super().__init__(path, **{**options, **limits})
        try:
            self.kv = self._reserve_kv()
        except BaseException:  # boundary: whatever interrupts the reservation, the workers must not outlive it
            self.close()
            raise

    @property
    def settings(self) -> EngineSettings:
        """How it is served: what the caller wished, with what was tuned filled in."""
        return self._settings

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer, as the model's files say."""
        return self._defaults.stop

    def step(self, op: str, body: bytes) -> bytes:
        """Send one call to all ranks and return the answer of rank 0. Takes turns with `generate` and `logits`."""
        with self._ranks.turn():
            return self._ranks.step(op, body)

    def tokenizer_or_none(self) -> Tokenizer | None:
        """Return the tokenizer, or None for a model that has none: it is served with token ids."""
        try:
            return self.tokenizer
        except UsageError:
            return None

    def unmerge(self) -> None:
        """Refuse: keys and values in blocks would be those of the merged model. Raises UsageError LM-USAGE-ADAPTER."""
        raise UsageError("LM-USAGE-ADAPTER", "a merged adapter stays while a model is served", hints=["use live mode"])

    def sleep(self, *, weights: bool) -> None:
        """Give back the memory of keys and values, and with `weights` that of the model. Nothing is computed until `wake`.

        Raises UsageError LM-UPDATE-BUSY while weights are updated.
        """
        with self._updates.alone(), self._ranks.turn():
            self._asleep = True
            self._ranks.call("sleep", encode(Sleep(weights=weights)))
            if weights:
                self._forgot_weights = True
                self.manager.forget()

    def wake(self) -> dict[int, str]:
        """Take the memory back. Weights are loaded by the same plan, so results are the same bits as before.

        Adapters are loaded again too. Returns what to `tell`, once all is settled, of those whose files have changed or
        gone, by their numbers. Raises ResourceError LM-MEMORY-FIT, and changes nothing, when others have taken the memory.
        """
        plan = self.plan.data
        weights = sum(rank.bytes + rank.staging + rank.scratch for rank in plan.ranks)
        weights = weights + self.manager.nbytes + self._arranged_bytes if self._forgot_weights else 0
        available = memory.available_memory()
        if plan.settings.device == "cpu" and weights + self.kv.nbytes > available:
            raise ResourceError(
                "LM-MEMORY-FIT",
                f"the memory that was given back is no longer there: {available / 1e9:.3f} GB available",
                why=f"weights {weights / 1e9:.3f} GB + keys and values {self.kv.nbytes / 1e9:.3f} GB",
                hints=["free memory and wake again"],
            )
        with self._ranks.turn():
            lost: dict[int, str] = {}
            if self._forgot_weights:
                if plan.settings.adapter_mode == "live":  # whichever there are by now come with their own numbers
                    plan = msgspec.structs.replace(plan, adapters=())
                bring_up(self._ranks.executor, self._ranks.record, plan, self._ranks.method, self._timeline, again=True)
                self._forgot_weights = False
                lost = self.manager.bring_back(self._ranks.ask_adapter)
            self._probe()
            self._reserve(self.kv)
            self._asleep = False
        return lost

    def tell(self, lines: Iterable[str]) -> None:
        """Tell the user of something, as notices."""
        for line in lines:
            self._notice(line)

    def _check_awake(self) -> None:
        if self._asleep:
            raise UsageError("LM-ENGINE-ASLEEP", "the engine is asleep and computes nothing", hints=["wake it first"])

    def _between_calls(self, swap: Callable[[], dict[int, str]]) -> dict[int, str]:
        return self.between_steps(swap)

    def _promised(self) -> int:
        """Return what was reserved for keys and values and adapters and has not been taken yet, what a step takes for a while,
        and what the second set's matrices take once more, arranged, as those of the first do.
        """
        held = sum(decode(result.body, Held).nbytes for result in self._ranks.call_in_turn("held", b""))
        return max(0, self.kv.nbytes - held) + self.kv.activation + self.manager.reserved + self._arranged_bytes

    def _ask_about_adapter(self, op: str, bodies: bytes | Sequence[bytes]) -> Answer:
        if self._forgot_weights:
            raise ResourceError("LM-ADAPTER-ASLEEP", "the weights are given back, and no adapter can be loaded", hints=["wake"])
        return self._ranks.ask_adapter(op, bodies)

    def _check_memory(self, plan: LoadPlan, available: int) -> None:
        self._settings, line = with_tuned(self._wanted, plan)
        if line:
            self._notice(line)
        super()._check_memory(plan, available)
        if plan.settings.device == "cpu":
            adapters, processes = self._limits.budget(plan), self._ranks.separate
            self._notice(check_plan(plan, self._settings, available, adapters=adapters, processes=processes))

    def _reserve_kv(self) -> KvPlan:
        free = self.manager.reserved
        planned = plan_kv(self.plan.data, self._probe(), self._settings, memory.available_memory(), free)
        for text in planned.notices:
            self._notice(text)
        self._reserve(planned)
        return planned

    def _probe(self) -> list[Probed]:
        positions = self.plan.data.outline.max_positions or self._settings.max_batch_tokens
        tokens = min(self._settings.max_batch_tokens, positions)
        if self._arrange is None:  # once: what an engine computes stays the same bits after it slept
            self._arrange = arranges(self.plan.data, self._settings, memory.available_memory())
        body = encode(Probe(tokens=tokens, arrange=self._arrange))
        probed = [decode(result.body, Probed) for result in self._ranks.call("probe", body, PROBE_TIMEOUT)]
        self._arranged_bytes = sum(rank.arranged for rank in probed)
        return probed

    def _reserve(self, planned: KvPlan) -> None:
        body = encode(ReserveKv(blocks=planned.blocks, block_size=self._settings.block_size))
        self._ranks.call("reserve_kv", body)
