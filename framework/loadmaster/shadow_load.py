"""The host's side of loading a second set of weights in ranks that go on answering with the first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from loadmaster.bringup import SLOWEST_STORAGE, STAGE_TIMEOUT
from loadmaster_engine.report import RankReport
from loadmaster_engine.run.agreement import telling
from loadmaster_engine.run.messages import ShadowState, assign_apart, decode
from loadmaster_hookspecs.errors import LoadmasterError, WorkerError, from_report
from loadmaster_hookspecs.events import Event, Progress
from loadmaster_hookspecs.executors import Result
from loadmaster_hookspecs.plan import LoadPlan

POLL_SECONDS: Final = 0.05
"""Seconds between two looks at how far the ranks are."""

DROP_SECONDS: Final = 60.0
"""Seconds that ranks may take to stop loading what is not wanted any more."""

Call = Callable[[str, bytes | Sequence[bytes]], list[Result]]
"""Sends one call to all ranks, between two steps."""


class ShadowLoad:
    """Loads a second set of weights in all ranks. Whatever goes wrong, the ranks forget it and go on with the first."""

    def __init__(self, call: Call, check: Callable[[], None], emit: Callable[[Event], None]) -> None:
        self._call = call
        self._check = check
        self._emit = emit

    def run(self, plan: LoadPlan) -> tuple[RankReport, ...]:
        """Carry a plan out, and return what each rank did once all can answer steps with it.

        `check` is called all the time and may raise. Raises the first error of any rank, and WorkerError LM-UPDATE-SLOW after
        the limit of a load.
        """
        total = sum(rank.bytes_planned for rank in plan.ranks)
        limit = STAGE_TIMEOUT + total / SLOWEST_STORAGE
        deadline = time.monotonic() + limit
        try:
            states = self._ask("shadow_begin", assign_apart(plan))
            while any(state.busy for state in states):
                self._check()
                if time.monotonic() > deadline:
                    raise WorkerError(
                        "LM-UPDATE-SLOW",
                        "loading the new weights took too long and was given up",
                        why=f"{sum(state.done for state in states)} of {total} bytes in {limit:.0f} s",
                        hints=["the old weights go on answering: update again when storage and processors have time"],
                    )
                time.sleep(POLL_SECONDS)
                states = self._ask("shadow_state")
                for part, state in zip(plan.ranks, states, strict=True):
                    self._emit(Progress(rank=part.rank, stage="load", done=state.done, total=part.bytes_planned))
            if plan.adapters:
                states = self._ask("shadow_adapt")
            states = self._ask("shadow_try")
            return tuple(state.report for state in states if state.report is not None)
        except BaseException:  # boundary: whatever ends the update, its memory is given back
            with suppress(LoadmasterError):  # the ranks have ended, and their memory with them
                self.drop()
            raise

    def swap(self, call: Call) -> None:
        """Let all ranks, by `call` between two steps, answer with the new weights and give the old ones' memory back."""
        call("shadow_swap", b"")

    def drop(self) -> None:
        """Have the ranks forget the weights. Does nothing once they answer with them."""
        deadline = time.monotonic() + DROP_SECONDS
        while any(decode(result.body, ShadowState).busy for result in self._call("shadow_drop", b"")):
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)

    def _ask(self, op: str, body: bytes | Sequence[bytes] = b"") -> list[ShadowState]:
        """Return the states after a call. Raises the error in them that says most."""
        states = [decode(result.body, ShadowState) for result in self._call(op, body)]
        if found := telling(state.error for state in states):
            error, rank = found
            raise from_report(msgspec.structs.replace(error, where={"rank": rank, **error.where}))
        return states
