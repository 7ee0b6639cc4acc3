"""One adapter in a worker, from its files to changes of modules that steps can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from loadmaster_engine.executors.failure import report_of
from loadmaster_engine.load.adapters import AdapterLoad
from loadmaster_engine.plugin_host import PluginHost
from loadmaster_engine.run.adapters.layers import PlacedLayer, Sum
from loadmaster_engine.serve.adapter_messages import AdapterState
from loadmaster_hookspecs.adapters import AdapterPart, LiveChange
from loadmaster_hookspecs.errors import LoadmasterError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from loadmaster_hookspecs.plan import AdapterPlan


class Resident:
    """Adapter `number` on one rank: opened, moved, built, and then used until it is closed.

    `attempt` keeps what goes wrong as `error`, and everything that the adapter held is given back at once.
    """

    def __init__(self, number: int, plan: AdapterPlan) -> None:
        self.number = number
        self.plan = plan
        self.changes: dict[str, LiveChange] = {}
        self.replaced: dict[str, torch.nn.Parameter] = {}
        self._load: AdapterLoad | None = None
        self._state = AdapterState(number=number, total=plan.ranks[0].bytes_planned, parts=len(plan.parts))

    @property
    def state(self) -> AdapterState:
        """How far the adapter is."""
        state = self._state
        if self._load is None:
            return state
        return AdapterState(
            number=self.number,
            nbytes=self._load.part.bytes,
            moved=self._load.moved,
            total=state.total,
            built=len(self.changes),
            parts=state.parts,
        )

    def attempt(self, work: Callable[[], None]) -> None:
        """Do a part of the work, unless something went wrong before."""
        if self._state.error is not None:
            return
        try:
            work()
        except Exception as error:  # boundary: a bad adapter ends no worker # noqa: BLE001
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Give up: note why, and give everything back."""
        located = error.located(adapter=self.plan.name) if isinstance(error, LoadmasterError) else error
        moved = self._load.moved if self._load else 0
        self.close()
        self._state = AdapterState(
            number=self.number, moved=moved, total=self._state.total, parts=self._state.parts, error=report_of(located)
        )

    def hold(self, load: AdapterLoad) -> None:
        """Take over a load, whose tensors are used once it is done."""
        self._load = load
        self._gather()

    def move(self, seconds: float) -> None:
        """Move bytes for about `seconds`."""
        self._opened.move(seconds)
        self._gather()

    def build(self, host: PluginHost, model: torch.nn.Module, shared: Collection[str], total: Sum, parts: int) -> None:
        """Prepare the next `parts` changes, together with the other ranks, who sum the results of the modules `shared`.

        `total` adds up over the ranks.
        """
        begin = len(self.changes)
        if not self._opened.done:
            raise WorkerError("LM-SERVICE-ORDER", "an adapter was to be built before its bytes were there")
        for part in self.plan.parts[begin : begin + parts]:
            weight = self.replaced.get(f"{part.path}.weight")
            add_up = total if part.path in shared else None
            layer = PlacedLayer(model.get_submodule(part.path), weight, add_up)
            kind = host.adapter_kind(self.plan.kind)
            with torch.inference_mode(), host.attributed(kind, f"live of adapter kind {kind.name} for {part.path}"):
                change = kind.live(part, self.tensors_of(part), layer)
                if not isinstance(change, LiveChange):
                    raise TypeError(f"returned {type(change).__name__} instead of a LiveChange")
                self.changes[part.path] = change

    def tensors_of(self, part: AdapterPart) -> dict[str, torch.Tensor]:
        """Return the rank's tensors of a part by role."""
        return {layout.name: self._opened.tensors[f"{part.path}.{layout.name}"] for layout in part.layouts}

    def close(self) -> None:
        """Give memory and files back. Nothing may use the adapter any more."""
        self.changes = {}
        self.replaced = {}
        if self._load is not None:
            self._load.close()
            self._load = None

    def _gather(self) -> None:
        """Take up the parameters that the adapter brings in the place of the model's, once they are there."""
        if self._opened.done:
            names = [f"{each.path}.{each.name}" for each in self.plan.replacements]
            tensors = self._opened.tensors
            self.replaced = {name: torch.nn.Parameter(tensors[name], requires_grad=False) for name in names}

    @property
    def _opened(self) -> AdapterLoad:
        if self._load is None:
            raise WorkerError("LM-SERVICE-ORDER", "an adapter was used before it was opened")
        return self._load
